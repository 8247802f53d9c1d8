#pragma once

// Launches the demos' kernels, and has device functions that several kernels use.

#include "demos/common/cuda_check.hpp"

namespace demos {

/// A block has 8 warps. In tiles, the lanes of a warp are along a row, and each warp has rows of its own.
inline constexpr int kLanes = 32;
inline constexpr int kWarps = 8;

inline unsigned blocks_for(std::size_t items, std::size_t per_block, std::size_t most) {
  const std::size_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Launches a kernel with blocks of kLanes x kWarps threads. The grid must not be empty. Throws std::runtime_error if
/// the launch fails.
template <typename... P, typename... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, cudaStream_t stream, A... arguments) {
  kernel<<<grid, dim3(kLanes, kWarps), 0, stream>>>(static_cast<P>(arguments)...);
  check_cuda(cudaGetLastError(), what);
}

/// Finds the last of `blocks` blocks that call this. Returns true in all threads of that block. This block then sees
/// everything that all blocks have written before. Any block can be the last, and the result must not depend on which.
/// The counter is 0 before the first call and after the last. All threads of a block must call this.
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

/// Gives every lane the sum over the warp's lanes. The order of the sum is always the same.
template <typename N>
__device__ N warp_sum(N value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

}  // namespace demos
