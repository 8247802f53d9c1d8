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
/// what the others leave.
struct SumLayout {
  unsigned columns;
  unsigned rows;
  unsigned column_groups;
  unsigned row_groups;

  SumLayout(std::size_t positions, std::size_t channels) {
    const auto vectors = static_cast<unsigned>(channels / kVector);
    columns = std::min(vectors, kSumColumns);
    rows = kSumThreads / columns;
    column_groups = (vectors + columns - 1) / columns;
    const std::size_t wanted = (positions + rows - 1) / rows;
    row_groups = static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max(1U, kSumBlocks / column_groups)));
  }
  dim3 grid() const { return {row_groups, column_groups}; }
  dim3 block() const { return {columns, rows}; }
};

/// One array of memory for both steps of adding up.
union SumMemory {
  float own[kSumThreads][kVector + 1];
  double of_blocks[kSumThreads][4];
};

/// Adds up each thread's sums over the block and writes them to partials [row groups, kSums, channels].
template <int kSums>
__device__ void write_block_sums(const Vector (&own)[kSums], SumMemory& memory, unsigned channels, float* partials) {
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned begin = blockIdx.y * blockDim.x * kVector;
  const unsigned width = blockDim.x * kVector;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVector; ++i) memory.own[thread][i] = own[s].v[i];
    __syncthreads();
    if (thread >= width || begin + thread >= channels) continue;
    float sum = 0;
#pragma unroll 8
    for (unsigned row = 0; row < blockDim.y; ++row) {
      sum += memory.own[row * blockDim.x + thread / kVector][thread % kVector];
    }
    partials[(std::size_t{blockIdx.x} * kSums + s) * channels + begin + thread] = sum;
  }
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
__device__ void finish_sums(SumMemory& memory, unsigned channels, const float* partials, Finish finish) {
  constexpr unsigned kFour = 4;
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned begin = blockIdx.y * blockDim.x * kVector;
  const unsigned width = min(blockDim.x * kVector, channels - begin);
  const unsigned fours = kSums * width / kFour;  // of sums, which a thread each begins with
  const unsigned parts = blockDim.x * blockDim.y / fours;
  const unsigned four = thread % fours;
  const unsigned part = thread / fours;
  double sums[kFour] = {};
  if (part < parts) {
    const unsigned which = four * kFour / width;
    const float* const place = partials + which * channels + begin + four * kFour % width;
#pragma unroll 8
    for (unsigned group = part; group < gridDim.x; group += parts) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(place + std::size_t{group} * kSums * channels));
      sums[0] += static_cast<double>(x.x);
      sums[1] += static_cast<double>(x.y);
      sums[2] += static_cast<double>(x.z);
      sums[3] += static_cast<double>(x.w);
    }
#pragma unroll
    for (unsigned i = 0; i < kFour; ++i) memory.of_blocks[thread][i] = sums[i];
  }
  __syncthreads();
  if (thread >= width) return;
  double total[kSums] = {};
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    const unsigned at = (s * width + thread) / kFour;
    for (unsigned p = 0; p < parts; ++p) total[s] += memory.of_blocks[p * fours + at][thread % kFour];
  }
  finish(begin + thread, total);
}

/// Both.
template <int kSums, class Finish>
__device__ void sum_over_blocks(const Vector (&own)[kSums], unsigned channels, const SumPlace& place, Finish finish) {
  __shared__ SumMemory memory;
  write_block_sums(own, memory, channels, place.partials);
  if (is_last_block(place.arrived)) finish_sums<kSums>(memory, channels, place.partials, finish);
}

}  // namespace resnet::cuda
