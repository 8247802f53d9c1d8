#pragma once

// Sums over the positions of an array [positions, channels], several per channel, in one kernel: each block adds up its
// positions, and the last block of those that share channels adds up what the blocks have left. In the same order each
// time, so that the bits are the same.

#include "demos/resnet/cuda_elements.cuh"
#include "demos/resnet/cuda_norm_kernels.hpp"

namespace resnet::cuda {

inline constexpr int kSumThreads = 512;  // of a block: two blocks are on a multiprocessor
inline constexpr unsigned kSumColumns = 16;
inline constexpr unsigned kSumBlocks = 264;  // two for each of 132 multiprocessors
static_assert(kSumBlocks == kMostPartials, "as many partial sums are written as blocks are started");

/// Blocks of columns x rows threads, as in Layout, with few blocks along the positions: the last of them has to add up
/// what the others leave. Columns are a power of two, so that a warp holds whole rows.
struct SumLayout {
  unsigned columns = 1;
  unsigned rows;
  unsigned column_groups;
  unsigned row_groups;

  SumLayout(std::size_t positions, std::size_t channels) {
    constexpr std::size_t kPositionsPerThread = 4;  // at least, where there are enough
    const auto vectors = static_cast<unsigned>(channels / kVector);
    while (columns < vectors && columns < kSumColumns) columns *= 2;
    rows = kSumThreads / columns;
    column_groups = (vectors + columns - 1) / columns;
    const std::size_t wanted = positions / (rows * kPositionsPerThread);
    row_groups = static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max(1U, kSumBlocks / column_groups)));
  }
  dim3 grid() const { return {row_groups, column_groups}; }
  dim3 block() const { return {columns, rows}; }
};

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kSumWarps = kSumThreads / kWarp;
inline constexpr unsigned kSumWidth = kSumColumns * kVector;  // channels of a block, at most

/// Memory for both steps of adding up.
template <int kSums>
union SumMemory {
  float of_warps[kSumWarps][kSums][kSumWidth];
  double of_parts[kSumThreads][4];
};

/// Adds up each thread's sums over the block and writes them to partials [row groups, kSums, channels].
template <int kSums>
__device__ void write_block_sums(const Vector (&own)[kSums], SumMemory<kSums>& memory, unsigned channels,
                                 float* partials) {
  const unsigned columns = blockDim.x;
  const unsigned thread = threadIdx.y * columns + threadIdx.x;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float sum = own[s].v[i];
      for (unsigned apart = kWarp / 2; apart >= columns; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
      if (thread % kWarp < columns) memory.of_warps[thread / kWarp][s][threadIdx.x * kVector + i] = sum;
    }
  }
  __syncthreads();
  const unsigned begin = blockIdx.y * columns * kVector;
  const unsigned width = columns * kVector;
  const unsigned which = thread / width;
  const unsigned channel = thread % width;
  if (which >= kSums || begin + channel >= channels) return;
  float sum = 0;
#pragma unroll
  for (unsigned warp = 0; warp < kSumWarps; ++warp) sum += memory.of_warps[warp][which][channel];
  partials[(std::size_t{blockIdx.x} * kSums + which) * channels + begin + channel] = sum;
}

/// Whether all other blocks of these channels have written theirs. Starts the count again.
__device__ inline bool is_last_block(unsigned* arrived) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    is_last = atomicAdd(arrived + blockIdx.y, 1U) == gridDim.x - 1;
    if (is_last) arrived[blockIdx.y] = 0;
  }
  __syncthreads();
  __threadfence();
  return is_last;
}

/// Adds up the partial sums of all blocks, and calls finish(channel, sums) in one thread for each of these channels.
template <int kSums, class Finish>
__device__ void finish_sums(SumMemory<kSums>& memory, unsigned channels, const float* partials, Finish finish) {
  constexpr unsigned kFour = 4;
  constexpr unsigned kAtOnce = 9;  // partial sums: what 132 blocks leave is loaded in two goes
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned begin = blockIdx.y * blockDim.x * kVector;
  const unsigned width = min(blockDim.x * kVector, channels - begin);
  const unsigned fours = kSums * width / kFour;  // of sums, which a thread each begins with
  const unsigned parts = kSumThreads / fours;
  const unsigned four = thread % fours;
  const unsigned part = thread / fours;
  if (part < parts) {
    const unsigned which = four * kFour / width;
    const float* const place = partials + which * channels + begin + four * kFour % width;
    double sums[kFour] = {};
    for (unsigned group = part; group < gridDim.x; group += kAtOnce * parts) {
      float4 x[kAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const unsigned own = group + i * parts;
        x[i] = own < gridDim.x ? __ldcg(reinterpret_cast<const float4*>(place + std::size_t{own} * kSums * channels))
                               : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        sums[0] += static_cast<double>(x[i].x);
        sums[1] += static_cast<double>(x[i].y);
        sums[2] += static_cast<double>(x[i].z);
        sums[3] += static_cast<double>(x[i].w);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kFour; ++i) memory.of_parts[thread][i] = sums[i];
  }
  __syncthreads();
  if (thread >= width) return;
  double total[kSums] = {};
#pragma unroll 8
  for (unsigned p = 0; p < parts; ++p) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      total[s] += memory.of_parts[p * fours + (s * width + thread) / kFour][thread % kFour];
  }
  finish(begin + thread, total);
}

/// Both.
template <int kSums, class Finish>
__device__ void sum_over_blocks(const Vector (&own)[kSums], unsigned channels, const SumPlace& place, Finish finish) {
  __shared__ SumMemory<kSums> memory;
  write_block_sums(own, memory, channels, place.partials);
  if (is_last_block(place.arrived)) finish_sums<kSums>(memory, channels, place.partials, finish);
}

}  // namespace resnet::cuda
