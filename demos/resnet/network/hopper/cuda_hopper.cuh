#pragma once

// Instructions of compute capability 9.0 that CUDA C++ has no functions for:
// - barriers in shared memory that count bytes;
// - copies of boxes between global and shared memory, by tensor maps;
// - matrix products by a warpgroup, which is four warps;
// - loads and stores of 8 x 8 matrices between shared memory and the registers of a warp.
//
// This header is for sm_90a only. Source: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level
// Matrix Instructions", "ldmatrix" and "stmatrix".
//
// Addresses in shared memory are 32 bits.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace resnet::cuda {

// A barrier takes 8 bytes. Its phases are counted from 0. A thread waits for a phase by the parity of its number.

__device__ inline void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes new barriers visible to copies. Call it after the last barrier_init. For other threads, a __syncthreads() is
/// needed too.
__device__ inline void barriers_are_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at the barrier. The phase then ends only when `bytes` bytes have been copied, too.
__device__ inline void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred is_over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 is_over, [%0], %1;\n"
      "@!is_over bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Begins to copy a box from column and row to shared memory. The barrier counts its bytes. Elements outside the array
/// become zeros, which count too.
__device__ inline void fetch_box(unsigned shared, const CUtensorMap& map, unsigned column, unsigned row,
                                 unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void fetch_box(unsigned shared, const CUtensorMap& map, const unsigned (&corner)[4],
                                 unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
      "l"(&map), "r"(corner[0]), "r"(corner[1]), "r"(corner[2]), "r"(corner[3]), "r"(barrier)
      : "memory");
}
/// Makes writes to shared memory visible to copies. The threads that wrote the values call it before store_box.
__device__ inline void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Begins to copy a box from shared memory to column and row. The part outside the array is left out.
__device__ inline void store_box(unsigned shared, const CUtensorMap& map, unsigned column, unsigned row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(column), "r"(row), "r"(shared)
      : "memory");
}
/// Waits until the copies of this thread's store_box have been read from shared memory. They may not be written yet.
__device__ inline void wait_for_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

inline constexpr unsigned kGroupThreads = 128;  // a warpgroup

/// Synchronizes the threads of a warpgroup.
__device__ inline void sync_group(unsigned group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

/// Call it before products whose registers were written by other instructions than products.
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Call it after the last of these products.
__device__ inline void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until the products before the last products_end are complete, and no longer read their operands.
__device__ inline void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Products read operands from shared memory by a descriptor of 64 bits, which has the place and the layout of an
// operand.

/// The descriptor of the operand that lies `bytes` bytes further on, a multiple of 16.
__device__ inline std::uint64_t moved(std::uint64_t described, unsigned bytes) { return described + bytes / 16; }

/// The descriptor of rows of 64 elements of 16 bits, in the layout of tensor maps swizzled by 128 bytes. The first row
/// lies at a multiple of 1,024. `moved` may move the descriptor by eight rows at a time, and by less than a row.
__device__ inline std::uint64_t rows_at(unsigned shared) {
  constexpr std::uint64_t kEightRows = 1024, kUnused = 16, kSwizzle128 = std::uint64_t{1} << 62U;
  return kSwizzle128 | kEightRows / 16 << 32U | kUnused / 16 << 16U | (shared & 0x3ffffU) / 16;
}

/// The descriptor of matrices of eight rows of 16 bytes, each at a multiple of 16. `along_columns` and `along_sum` are
/// the bytes from one matrix to the next: along the columns of the product, and along the sums.
__device__ inline std::uint64_t matrices_at(unsigned shared, unsigned along_columns, unsigned along_sum) {
  return std::uint64_t{along_columns / 16} << 32U | std::uint64_t{along_sum / 16} << 16U | (shared & 0x3ffffU) / 16;
}

/// sums [64, columns] = (adds ? sums : 0) + left [64, 16] right^T. `right` has one row of 16 elements for each column.
/// Warp w has the rows from 16 w on of left and sums, in the fragments of mma.m16n8k16.
template <bool kAdds>
__device__ void multiply_add(float (&s)[4][4], const unsigned (&left)[4], std::uint64_t right) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, adds, 1, 1, 0;\n"
      "}"
      : "+f"(s[0][0]), "+f"(s[0][1]), "+f"(s[0][2]), "+f"(s[0][3]), "+f"(s[1][0]), "+f"(s[1][1]), "+f"(s[1][2]),
        "+f"(s[1][3]), "+f"(s[2][0]), "+f"(s[2][1]), "+f"(s[2][2]), "+f"(s[2][3]), "+f"(s[3][0]), "+f"(s[3][1]),
        "+f"(s[3][2]), "+f"(s[3][3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(kAdds));
}
template <bool kAdds>
__device__ void multiply_add(float (&s)[8][4], const unsigned (&left)[4], std::uint64_t right) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, adds, 1, 1, 0;\n"
      "}"
      : "+f"(s[0][0]), "+f"(s[0][1]), "+f"(s[0][2]), "+f"(s[0][3]), "+f"(s[1][0]), "+f"(s[1][1]), "+f"(s[1][2]),
        "+f"(s[1][3]), "+f"(s[2][0]), "+f"(s[2][1]), "+f"(s[2][2]), "+f"(s[2][3]), "+f"(s[3][0]), "+f"(s[3][1]),
        "+f"(s[3][2]), "+f"(s[3][3]), "+f"(s[4][0]), "+f"(s[4][1]), "+f"(s[4][2]), "+f"(s[4][3]), "+f"(s[5][0]),
        "+f"(s[5][1]), "+f"(s[5][2]), "+f"(s[5][3]), "+f"(s[6][0]), "+f"(s[6][1]), "+f"(s[6][2]), "+f"(s[6][3]),
        "+f"(s[7][0]), "+f"(s[7][1]), "+f"(s[7][2]), "+f"(s[7][3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(kAdds));
}

/// As above, with left in shared memory too: its descriptor is that of rows_at.
template <bool kAdds>
__device__ void multiply_add(float (&s)[14][4], std::uint64_t left, std::uint64_t right) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %58, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, "
      "%56, %57, adds, 1, 1, 0, 0;\n"
      "}"
      : "+f"(s[0][0]), "+f"(s[0][1]), "+f"(s[0][2]), "+f"(s[0][3]), "+f"(s[1][0]), "+f"(s[1][1]), "+f"(s[1][2]),
        "+f"(s[1][3]), "+f"(s[2][0]), "+f"(s[2][1]), "+f"(s[2][2]), "+f"(s[2][3]), "+f"(s[3][0]), "+f"(s[3][1]),
        "+f"(s[3][2]), "+f"(s[3][3]), "+f"(s[4][0]), "+f"(s[4][1]), "+f"(s[4][2]), "+f"(s[4][3]), "+f"(s[5][0]),
        "+f"(s[5][1]), "+f"(s[5][2]), "+f"(s[5][3]), "+f"(s[6][0]), "+f"(s[6][1]), "+f"(s[6][2]), "+f"(s[6][3]),
        "+f"(s[7][0]), "+f"(s[7][1]), "+f"(s[7][2]), "+f"(s[7][3]), "+f"(s[8][0]), "+f"(s[8][1]), "+f"(s[8][2]),
        "+f"(s[8][3]), "+f"(s[9][0]), "+f"(s[9][1]), "+f"(s[9][2]), "+f"(s[9][3]), "+f"(s[10][0]), "+f"(s[10][1]),
        "+f"(s[10][2]), "+f"(s[10][3]), "+f"(s[11][0]), "+f"(s[11][1]), "+f"(s[11][2]), "+f"(s[11][3]), "+f"(s[12][0]),
        "+f"(s[12][1]), "+f"(s[12][2]), "+f"(s[12][3]), "+f"(s[13][0]), "+f"(s[13][1]), "+f"(s[13][2]), "+f"(s[13][3])
      : "l"(left), "l"(right), "n"(kAdds));
}

/// sums [64, 32] += left [64, 16] right [16, 32]. `right` consists of matrices of eight rows and columns.
__device__ inline void multiply_add_down(float (&s)[4][4], const unsigned (&left)[4], std::uint64_t right) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, 1, 1, 1, 1;"
      : "+f"(s[0][0]), "+f"(s[0][1]), "+f"(s[0][2]), "+f"(s[0][3]), "+f"(s[1][0]), "+f"(s[1][1]), "+f"(s[1][2]),
        "+f"(s[1][3]), "+f"(s[2][0]), "+f"(s[2][1]), "+f"(s[2][2]), "+f"(s[2][3]), "+f"(s[3][0]), "+f"(s[3][1]),
        "+f"(s[3][2]), "+f"(s[3][3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

/// Loads four matrices of 8 x 8 elements of 16 bits. Lanes 8 i to 8 i + 7 pass the addresses of the rows of matrix i.
/// Each lane gets, from each matrix, column lane / 4 of row lane % 4 * 2 and of the next row.
__device__ inline void load_columns(unsigned shared, unsigned (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(shared)
               : "memory");
}
__device__ inline void store_columns(unsigned shared, const unsigned (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(pairs[0]),
               "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}
__device__ inline unsigned load_half(unsigned shared) {
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(shared) : "memory");
  return bits;
}

}  // namespace resnet::cuda
