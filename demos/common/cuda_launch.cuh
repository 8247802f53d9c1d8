#pragma once

// How the demos' kernels are launched, and what several of them need inside.

#include "demos/common/cuda_check.hpp"

namespace demos {

/// A block is 8 warps; in tiles, lanes run along a row and each warp has rows of its own.
inline constexpr int kLanes = 32;
inline constexpr int kWarps = 8;

inline unsigned blocks_for(std::size_t items, std::size_t per_block, std::size_t most) {
  const std::size_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Launches with blocks of kLanes x kWarps threads. Grids are not empty. Throws std::runtime_error.
template <typename... P, typename... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, cudaStream_t stream, A... arguments) {
  kernel<<<grid, dim3(kLanes, kWarps), 0, stream>>>(static_cast<P>(arguments)...);
  check_cuda(cudaGetLastError(), what);
}

/// True in every thread of the block that comes last of `blocks` to this place, which then sees what all of them wrote
/// before. Which block that is varies and the result must not depend on it. The counter is 0 before and after. Called by
/// all threads of a block.
inline __device__ bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool is_last;
  __threadfence();  // this thread's writes are visible to all before the block counts itself
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    is_last = atomicAdd(counter, 1U) == blocks - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

/// The sum over a warp's lanes, in an order that is always the same, on every lane.
template <typename N>
__device__ N warp_sum(N value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

}  // namespace demos
