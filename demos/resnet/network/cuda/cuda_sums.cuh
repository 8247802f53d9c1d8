#pragma once

// Sums over the positions of an array [positions, channels] in one kernel, with several sums per channel. Each block
// adds up its positions. The last of the blocks that share channels then adds up the partial sums of these blocks. The
// order is the same each time, so the bits are the same.

#include "demos/resnet/network/cuda/cuda_elements.cuh"
#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"

namespace resnet::cuda {

inline constexpr int kSumThreads = 512;  // in a block laid out by SumLayout; a multiprocessor runs two blocks
inline constexpr unsigned kSumColumns = 16;
inline constexpr unsigned kSumBlocks = 264;  // two for each of 132 multiprocessors
static_assert(kSumBlocks == kMostPartials, "as many partial sums are written as blocks are started");

/// Blocks of columns x rows threads, as in Layout. There are few blocks along the positions, because the last one has
/// to add up the partial sums of all. The number of columns is a power of two, so that a warp has whole rows.
struct SumLayout {
  unsigned columns = 1;
  unsigned rows;
  unsigned column_groups;
  unsigned row_groups;

  SumLayout(std::size_t positions, std::size_t channels) {
    constexpr std::size_t kPositionsPerThread = 4;  // at least this many, if there are enough positions
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
inline constexpr unsigned kSumWidth = kSumColumns * kVector;  // most channels of a block

/// Shared memory for both steps of the sum, in a block of kOfBlock threads.
template <int kSums, unsigned kOfBlock = kSumThreads, unsigned kWidth = kSumWidth>
union SumMemory {
  float of_warps[kOfBlock / kWarp][kSums][kWidth];
  double of_parts[kOfBlock][4];
};

/// The channels of a block.
struct SumChannels {
  unsigned begin;
  unsigned width;
  unsigned all;
};

/// Adds up the sums that the first kWarps warps have written to memory.of_warps. Writes the result to partials [row
/// groups, kSums, channels].
template <unsigned kWarps, int kSums, unsigned kOfBlock, unsigned kWidth>
__device__ void write_partials(const SumMemory<kSums, kOfBlock, kWidth>& memory, unsigned thread,
                               const SumChannels& own, float* partials) {
  __syncthreads();
  for (unsigned at = thread; at < kSums * own.width; at += kOfBlock) {
    const unsigned which = at / own.width;
    const unsigned channel = at % own.width;
    float sum = 0;
#pragma unroll
    for (unsigned warp = 0; warp < kWarps; ++warp) sum += memory.of_warps[warp][which][channel];
    partials[(std::size_t{blockIdx.x} * kSums + which) * own.all + own.begin + channel] = sum;
  }
}

/// Returns whether all other blocks of these channels have written their partial sums. If so, resets the counter.
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
template <int kSums, unsigned kOfBlock, unsigned kWidth, class Finish>
__device__ void finish_sums(SumMemory<kSums, kOfBlock, kWidth>& memory, unsigned thread, const SumChannels& own,
                            const float* partials, Finish finish) {
  constexpr unsigned kFour = 4;
  // The number of partial sums that a thread loads at a time. With two sums for each of 128 channels, two such loads
  // read the partial sums of 132 blocks.
  constexpr unsigned kAtOnce = 9;
  const unsigned fours = kSums * own.width / kFour;  // groups of four sums; a thread begins with one group
  const unsigned parts = kOfBlock / fours;
  const unsigned four = thread % fours;
  const unsigned part = thread / fours;
  if (part < parts) {
    const unsigned which = four * kFour / own.width;
    const float* const place = partials + which * own.all + own.begin + four * kFour % own.width;
    double sums[kFour] = {};
    for (unsigned group = part; group < gridDim.x; group += kAtOnce * parts) {
      float4 x[kAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const unsigned at = group + i * parts;
        x[i] = at < gridDim.x ? __ldcg(reinterpret_cast<const float4*>(place + std::size_t{at} * kSums * own.all))
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
  if (thread >= own.width) return;
  double total[kSums] = {};
#pragma unroll 8
  for (unsigned p = 0; p < parts; ++p) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      total[s] += memory.of_parts[p * fours + (s * own.width + thread) / kFour][thread % kFour];
  }
  finish(own.begin + thread, total);
}

/// Makes both steps, from the sums that the first kWarps warps have written.
template <unsigned kWarps, int kSums, unsigned kOfBlock, unsigned kWidth, class Finish>
__device__ void sum_warps_over_blocks(SumMemory<kSums, kOfBlock, kWidth>& memory, unsigned thread,
                                      const SumChannels& own, const SumPlace& place, Finish finish) {
  write_partials<kWarps>(memory, thread, own, place.partials);
  if (is_last_block(place.arrived)) finish_sums(memory, thread, own, place.partials, finish);
}

/// Adds up the sums of the threads over the block, which is laid out by SumLayout, and then over all blocks.
template <int kSums, class Finish>
__device__ void sum_over_blocks(const Vector (&own)[kSums], unsigned channels, const SumPlace& place, Finish finish) {
  __shared__ SumMemory<kSums> memory;
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
  const unsigned begin = blockIdx.y * columns * kVector;
  const SumChannels of_block{begin, min(columns * kVector, channels - begin), channels};
  sum_warps_over_blocks<kSumWarps>(memory, thread, of_block, place, finish);
}

}  // namespace resnet::cuda
