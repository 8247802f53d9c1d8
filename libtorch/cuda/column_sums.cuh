#pragma once

// The kernel behind all sums over the rows of a matrix.

#include <algorithm>
#include <cstdint>

#include "libtorch/cuda/kernel_types.hpp"

namespace syncrun::libtorch::detail::kernels {

constexpr int kLanes = 32;

/// The columns that a thread adds up at once.
template <class A>
constexpr int kColumns = 16 / sizeof(A);

/// Whether threads can read or write `kWidth` elements of these arrays at once.
template <int kWidth, class... T>
bool fit(const T*... arrays) {
  return (begin_at_multiples(sizeof(Pack<T, kWidth>), arrays) && ...);
}
/// The same for the rows of arrays of this width, with kColumns<A> elements.
template <class A, class... T>
bool is_wide(std::int64_t width, const T*... arrays) {
  return width % kColumns<A> == 0 && fit<kColumns<A>>(arrays...);
}

/// Adds the elements of a matrix to the sums of its columns.
template <class T>
struct Elements {
  static constexpr int kSums = 1;
  using A = Sum<T>;

  const T* rows;
  std::int64_t width;

  template <int kWidth>
  __device__ void add(std::int64_t row, std::int64_t column, A (&sums)[kSums][kWidth]) const {
    const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(rows + row * width + column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums[0][k] += static_cast<A>(pack.values[k]);
  }
};

/// Adds up what `source` adds for each row. A block has kLanes x kRows threads. It handles kLanes * kWidth columns, and
/// the rows from blockIdx.y * rows_per_block. Writes a row of kSums * width numbers for each blockIdx.y. The order of the
/// additions depends only on the sizes and on kWidth.
template <int kWidth, int kRows, class Source>
__global__ void __launch_bounds__(kLanes* kRows)
    column_sums_kernel(Source source, std::int64_t rows, std::int64_t rows_per_block, std::int64_t width,
                       typename Source::A* results) {
  using A = typename Source::A;
  constexpr int kSums = Source::kSums;
  __shared__ A shares[kRows][kLanes * kWidth];
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t column = (std::int64_t{blockIdx.x} * kLanes + lane) * kWidth;
  const std::int64_t first = blockIdx.y * rows_per_block;
  const std::int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
  A sums[kSums][kWidth] = {};
  if (column < width) {
#pragma unroll 4
    for (std::int64_t row = first + threadIdx.y; row < end; row += kRows) source.add(row, column, sums);
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    if (s > 0) __syncthreads();
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shares[threadIdx.y][lane * kWidth + k] = sums[s][k];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y) * kLanes + lane; i < kLanes * kWidth; i += kLanes * kRows) {
      const std::int64_t own = std::int64_t{blockIdx.x} * kLanes * kWidth + i;
      if (own >= width) continue;
      A sum = 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) sum += shares[row][i];
      results[(std::int64_t{blockIdx.y} * kSums + s) * width + own] = sum;
    }
  }
}

/// The grid of the first of the two passes.
struct ColumnGrid {
  static constexpr int kRows = 8;  // of a block at once

  std::int64_t rows_per_block;
  std::int64_t blocks;  // over the rows

  /// As many blocks as keep a GPU busy, each with at least 32 rows if there are so many.
  static ColumnGrid of(std::int64_t rows, std::int64_t width, int columns_of_thread) {
    constexpr std::int64_t kLeastRows = 4 * kRows;
    constexpr std::int64_t kMostBlocks = 1024;
    const std::int64_t across = (width + kLanes * columns_of_thread - 1) / (kLanes * columns_of_thread);
    const std::int64_t wanted = std::max<std::int64_t>(1, std::min(rows / kLeastRows, kMostBlocks / across));
    const std::int64_t each = (rows + wanted - 1) / wanted;
    return {each, (rows + each - 1) / each};
  }
};

/// One pass over a matrix. If `columns_of_thread` is not 1, all arrays allow packs of kColumns<A>.
template <int kRows, class Source>
void launch_column_sums(const Source& source, std::int64_t rows, std::int64_t rows_per_block, std::int64_t width,
                        int columns_of_thread, typename Source::A* results, cudaStream_t stream) {
  constexpr int kWide = kColumns<typename Source::A>;
  const auto across = static_cast<unsigned>((width + kLanes * columns_of_thread - 1) / (kLanes * columns_of_thread));
  const auto down = static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  const dim3 grid(across, down);
  const dim3 block(kLanes, kRows);
  if (columns_of_thread == 1)
    column_sums_kernel<1, kRows><<<grid, block, 0, stream>>>(source, rows, rows_per_block, width, results);
  else column_sums_kernel<kWide, kRows><<<grid, block, 0, stream>>>(source, rows, rows_per_block, width, results);
}

/// The second pass: adds up the rows of `scratch`.
template <class A>
void add_up(const A* scratch, std::int64_t rows, std::int64_t width, A* results, cudaStream_t stream) {
  constexpr int kMany = 32;
  const int columns = is_wide<A>(width, scratch) ? kColumns<A> : 1;
  const Elements<A> source{scratch, width};
  if (rows <= ColumnGrid::kRows)
    launch_column_sums<ColumnGrid::kRows>(source, rows, rows, width, columns, results, stream);
  else launch_column_sums<kMany>(source, rows, rows, width, columns, results, stream);
}

/// Two passes: blocks add up parts of the rows in `scratch`, which has ColumnGrid::blocks * kSums * width numbers, and then
/// their sums are added up in `results`, which has kSums * width.
template <class Source>
void sum_columns(const Source& source, std::int64_t rows, std::int64_t width, int columns_of_thread,
                 typename Source::A* scratch, typename Source::A* results, cudaStream_t stream) {
  const ColumnGrid grid = ColumnGrid::of(rows, width, columns_of_thread);
  const bool is_one = grid.blocks == 1;
  launch_column_sums<ColumnGrid::kRows>(source, rows, grid.rows_per_block, width, columns_of_thread,
                                        is_one ? results : scratch, stream);
  if (!is_one) add_up(scratch, grid.blocks, Source::kSums * width, results, stream);
}

}  // namespace syncrun::libtorch::detail::kernels
