#pragma once

// Eight neighbouring channels at a time: how the kernels of a residual network read and write, and how their threads are
// laid over an array [positions, channels] so that each keeps to its channels.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "demos/common/cuda_check.hpp"
#include "demos/resnet/cuda_convolution.hpp"

namespace resnet::cuda {

inline constexpr int kVector = 8;                // channels
inline constexpr int kThreads = 256;             // of a block
inline constexpr std::size_t kMostBlocks = 528;  // four for each of 132 multiprocessors

struct Vector {
  float v[kVector];
};

__device__ inline Vector load(const float* place) {
  const float4 low = reinterpret_cast<const float4*>(place)[0];
  const float4 high = reinterpret_cast<const float4*>(place)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ inline void store(float* place, const Vector& x) {
  reinterpret_cast<float4*>(place)[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  reinterpret_cast<float4*>(place)[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}
__device__ inline Vector load(const __nv_bfloat16* place) {
  const uint4 raw = *reinterpret_cast<const uint4*>(place);
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
  Vector x;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    x.v[2 * i] = pair.x;
    x.v[2 * i + 1] = pair.y;
  }
  return x;
}
__device__ inline void store(__nv_bfloat16* place, const Vector& x) {
  uint4 raw;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
  *reinterpret_cast<uint4*>(place) = raw;
}

/// A block is columns x rows threads. A column is a vector of channels, which its threads keep; along the rows they go
/// through the positions.
struct Layout {
  unsigned columns;        // of a block
  unsigned rows;           // of a block
  unsigned column_groups;  // blocks along the channels
  unsigned row_groups;     // blocks along the positions

  Layout(std::size_t positions, std::size_t channels, std::size_t most_blocks = kMostBlocks) {
    constexpr std::size_t kMostColumns = 64;
    constexpr std::size_t kRowsPerThread = 4;  // at least, where there are enough
    const std::size_t vectors = channels / kVector;
    columns = static_cast<unsigned>(std::min(vectors, kMostColumns));
    rows = std::max(1U, kThreads / columns);
    column_groups = static_cast<unsigned>((vectors + columns - 1) / columns);
    const std::size_t wanted = (positions + rows * kRowsPerThread - 1) / (rows * kRowsPerThread);
    row_groups = static_cast<unsigned>(
        std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, most_blocks / column_groups)));
  }
  dim3 grid() const { return {row_groups, column_groups}; }
  dim3 block() const { return {columns, rows}; }
};

/// This thread's first channel; at or above the number of channels: nothing to do.
__device__ inline std::size_t own_channel() { return (blockIdx.y * blockDim.x + threadIdx.x) * std::size_t{kVector}; }

/// Calls `visit` with each position of this thread's.
template <class Visit>
__device__ void for_own_positions(std::size_t positions, Visit visit) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.y;
#pragma unroll 4
  for (std::size_t p = blockIdx.x * blockDim.y + threadIdx.y; p < positions; p += step) visit(p);
}

template <typename... P, typename... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, A... arguments) {
  kernel<<<grid, block, 0, stream>>>(static_cast<P>(arguments)...);
  demos::check_cuda(cudaGetLastError(), what);
}

/// Calls `body` with a null pointer to the type of the elements.
template <class Body>
void with_element(CudaMath math, Body body) {
  if (math == CudaMath::kBfloat16) {
    body(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}

}  // namespace resnet::cuda
