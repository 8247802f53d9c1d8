#pragma once

// Matrix products of bfloat16 in blocks that stay: each has 128 channels of the result, keeps their filters in registers and
// goes through tiles of positions, which are copied to shared memory ahead of time. The tensor cores' instruction is
// m16n8k16; sources of what lies where: PTX ISA, "Matrix Fragments for mma.m16n8k16", and "ldmatrix".

#include <cuda_bf16.h>

#include <cstddef>

#include "demos/resnet/cuda_sums.cuh"

namespace resnet::cuda {

inline constexpr unsigned kProductThreads = 256;   // of a block: two blocks are on a multiprocessor
inline constexpr unsigned kProductChannels = 128;  // of a block
inline constexpr unsigned kProductWarps = kProductThreads / kWarp;
inline constexpr unsigned kVectorBytes = 16;
static_assert(kProductChannels <= kSumWidth && kVectorBytes == kVector * sizeof(__nv_bfloat16));

/// Rows of kWidth elements in shared memory. Vectors of one column in eight neighbouring rows lie in different banks, and so
/// do eight neighbouring vectors of a row.
template <unsigned kRows, unsigned kWidth>
struct Tile {
  static constexpr unsigned kHeight = kRows;
  static constexpr unsigned kVectors = kWidth / kVector;  // of a row
  static constexpr unsigned kBytes = kRows * kVectors * kVectorBytes;
  static constexpr unsigned kRowsAtOnce = kProductThreads / kVectors;
  static_assert(kVectors % 8 == 0 && kRows % kRowsAtOnce == 0);

  __host__ __device__ static constexpr unsigned at(unsigned row, unsigned vector) {
    return (row * kVectors + (vector ^ row % 8)) * kVectorBytes;
  }
  /// Calls use(row, vector) for those that this thread copies.
  template <class Use>
  static __device__ void for_own_vectors(Use use) {
#pragma unroll
    for (unsigned i = 0; i < kRows / kRowsAtOnce; ++i)
      use(i * kRowsAtOnce + threadIdx.x / kVectors, threadIdx.x % kVectors);
  }
};

// Instructions from compute capability 8.0 on; product_device says no on what is older.

/// Begins to copy 16 bytes, or as many zeros.
__device__ inline void fetch_vector(unsigned shared, const void* from, bool is_there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(__cvta_generic_to_global(from)),
               "r"(is_there ? kVectorBytes : 0U)
               : "memory");
#endif
}
/// Makes a group of this thread's copies since the last one.
__device__ inline void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all of this thread's groups but the last kMore have arrived.
template <unsigned kMore>
__device__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kMore) : "memory");
#endif
}
/// 16 x 16 elements, of which the lanes give the addresses of half rows: rows 0 to 15, then their second halves.
__device__ inline void load_square(unsigned shared, unsigned (&square)[4]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(square[0]), "=r"(square[1]), "=r"(square[2]), "=r"(square[3])
               : "r"(shared)
               : "memory");
#endif
}
/// sums [16, 8] += square [16, 16] pairs [16, 8].
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&square)[4], const unsigned (&pairs)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(square[0]), "r"(square[1]), "r"(square[2]), "r"(square[3]), "r"(pairs[0]), "r"(pairs[1]));
#endif
}

/// Begins to copy rows [first, first + height) of an array with so many elements from one row to the next; zeros beyond the
/// last position.
template <class Tile>
__device__ void fetch_tile(unsigned shared, const __nv_bfloat16* from, std::size_t stride, unsigned first,
                           unsigned positions) {
  Tile::for_own_vectors([&](unsigned row, unsigned vector) {
    const bool is_there = first + row < positions;
    const __nv_bfloat16* const place = from + (is_there ? first + row : 0) * stride + vector * kVector;
    fetch_vector(shared + Tile::at(row, vector), place, is_there);
  });
}

/// A block's tiles of positions: from the last to the first, see Way. Neighbouring blocks take neighbouring ones, and those
/// of other channels the same at about the same time, so that the cache serves them.
/// kStages are in memory: one that is worked on, and copies under way.
template <unsigned kRows, unsigned kStages, class Fetch>
class OwnTiles {
 public:
  /// fetch(stage, first position) begins the copies of a tile; those of the first ones begin here.
  __device__ OwnTiles(unsigned positions, Fetch fetch) : tiles_((positions + kRows - 1) / kRows), fetch_(fetch) {
#pragma unroll
    for (unsigned i = 0; i < kStages - 1; ++i) start(i);
  }

  /// Calls use(stage, first position) by all threads for each tile, when it is there. What is shared may be written by then:
  /// nobody is at the tile before any more.
  template <class Use>
  __device__ void for_each(Use use) {
    for (unsigned i = 0; counted(i) < tiles_; ++i) {
      wait_for_groups<kStages - 2>();
      __syncthreads();
      start(i + kStages - 1);
      use(i % kStages, first(i));
    }
  }

 private:
  __device__ unsigned counted(unsigned i) const { return blockIdx.x + i * gridDim.x; }
  __device__ unsigned first(unsigned i) const { return (tiles_ - 1 - counted(i)) * kRows; }
  /// A group for each, also for none: they are counted.
  __device__ void start(unsigned i) {
    if (counted(i) < tiles_) fetch_(i % kStages, first(i));
    end_group();
  }

  unsigned tiles_;
  Fetch fetch_;
};

/// How a tile's rows and the block's channels are divided among its warps: a warp's part of the filters takes
/// kDepth * kChannels / 64 registers of each thread.
template <unsigned kDepth, unsigned kRows, unsigned kOwnChannels>
struct WarpPart {
  static constexpr unsigned kChannels = kOwnChannels;
  static constexpr unsigned kAlong = kProductChannels / kChannels;  // warps
  static constexpr unsigned kDown = kProductWarps / kAlong;         // warps
  static constexpr unsigned kVectors = kChannels / kVector;
  static constexpr unsigned kSquares = kRows / kDown / 16;  // of rows
  static constexpr unsigned kSteps = kDepth / 16;

  unsigned channel = threadIdx.x / kWarp % kAlong * kChannels;  // the first one, in the block
  unsigned down = threadIdx.x / kWarp / kAlong;
  // In a fragment a thread has rows `row` and `row` + 8, and of each eight channels `pair` and the next one.
  unsigned row = threadIdx.x % kWarp / 4;
  unsigned pair = threadIdx.x % 4 * 2;

  __device__ unsigned first_row(unsigned square) const { return (down * kSquares + square) * 16; }
};

/// Writes what a warp has made of a tile, its channels of its rows, as far as there are positions; the others may be at
/// other work. Eight lanes read from different banks.
template <class Tile, class Part>
__device__ void store_part(const Part& part, const std::byte* tile, __nv_bfloat16* to, std::size_t stride,
                           unsigned first, unsigned rows) {
  constexpr unsigned kRowsAtOnce = kWarp / Part::kVectors;
  constexpr unsigned kApart = Part::kVectors;        // rows that eight lanes read
  constexpr unsigned kOfEight = 8 / Part::kVectors;  // as many of them
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned vector = part.channel / kVector + lane % Part::kVectors;
  const unsigned number = lane / Part::kVectors;
  const unsigned own = number % kOfEight * kApart + number / kOfEight % kApart + number / 8 * 8;
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < Part::kSquares * 16 / kRowsAtOnce; ++i) {
    const unsigned row = part.first_row(0) + i * kRowsAtOnce + own;
    if (row >= rows) continue;
    *reinterpret_cast<uint4*>(to + (first + row) * stride + vector * kVector) =
        *reinterpret_cast<const uint4*>(tile + Tile::at(row, vector));
  }
}

/// How a filter lies: [channels, depth] or [depth, channels].
enum class FilterOrder { kByChannel, kByDepth };

/// What a thread keeps of the filters.
template <class Part>
struct FilterPart {
  unsigned pairs[Part::kSteps][Part::kVectors][2];

  template <FilterOrder kOrder>
  static __device__ FilterPart load(const Part& part, const __nv_bfloat16* filter, std::size_t channels) {
    constexpr unsigned kDepth = Part::kSteps * 16;
    FilterPart own;
#pragma unroll
    for (unsigned step = 0; step < Part::kSteps; ++step) {
#pragma unroll
      for (unsigned v = 0; v < Part::kVectors; ++v) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const std::size_t channel = blockIdx.y * kProductChannels + part.channel + v * kVector + part.row;
          const std::size_t depth = step * 16 + half * 8 + part.pair;
          if constexpr (kOrder == FilterOrder::kByChannel) {
            own.pairs[step][v][half] = *reinterpret_cast<const unsigned*>(filter + channel * kDepth + depth);
          } else {
            const auto* const bits = reinterpret_cast<const unsigned short*>(filter) + depth * channels + channel;
            own.pairs[step][v][half] = bits[0] | unsigned{bits[channels]} << 16U;
          }
        }
      }
    }
    return own;
  }
};

/// What a thread has of the product of 16 of its warp's rows, the part's square s.
template <class Part>
struct ProductPart {
  float v[Part::kVectors][4] = {};

  /// Of a tile in shared memory.
  template <class Input>
  __device__ void multiply(const Part& part, unsigned s, unsigned input, const FilterPart<Part>& filter) {
    const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
    for (unsigned step = 0; step < Part::kSteps; ++step) {
      unsigned square[4];
      load_square(input + Input::at(part.first_row(s) + lane % 16, 2 * step + lane / 16), square);
#pragma unroll
      for (unsigned i = 0; i < Part::kVectors; ++i) multiply_add(this->v[i], square, filter.pairs[step][i]);
    }
  }
  /// Calls use(row of the tile, i, value, value of the next channel), i counting the warp's vectors of channels.
  template <class Use>
  __device__ void for_each_pair(const Part& part, unsigned s, Use use) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = part.first_row(s) + half * 8 + part.row;
#pragma unroll
      for (unsigned i = 0; i < Part::kVectors; ++i) use(row, i, v[i][2 * half], v[i][2 * half + 1]);
    }
  }
};

/// A value per channel of a thread's, from an array [channels].
template <class Part>
struct ChannelPart {
  float2 v[Part::kVectors];

  __device__ ChannelPart(const Part& part, const float* values) {
#pragma unroll
    for (unsigned i = 0; i < Part::kVectors; ++i) {
      const unsigned channel = blockIdx.y * kProductChannels + part.channel + i * kVector + part.pair;
      v[i] = *reinterpret_cast<const float2*>(values + channel);
    }
  }
};

/// Several sums per channel of a thread's.
template <class Part, int kSums>
struct SumPart {
  float2 v[kSums][Part::kVectors] = {};

  /// Over the block, and over all blocks: see sum_over_blocks.
  template <class Finish>
  __device__ void add_up(const Part& part, unsigned channels, const SumPlace& place, Finish finish) const {
    __shared__ SumMemory<kSums, kProductThreads> memory;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (unsigned i = 0; i < Part::kVectors; ++i) {
        float2 sum = v[s][i];
        for (unsigned apart = kWarp / 2; apart >= 4; apart /= 2) {
          sum.x += __shfl_xor_sync(~0U, sum.x, apart);
          sum.y += __shfl_xor_sync(~0U, sum.y, apart);
        }
        if (part.row > 0) continue;
        float* const of_warp = memory.of_warps[part.down][s] + part.channel + i * kVector + part.pair;
        of_warp[0] = sum.x;
        of_warp[1] = sum.y;
      }
    }
    const SumChannels own{blockIdx.y * kProductChannels, kProductChannels, channels};
    sum_warps_over_blocks<Part::kDown>(memory, threadIdx.x, own, place, finish);
  }
};

}  // namespace resnet::cuda
