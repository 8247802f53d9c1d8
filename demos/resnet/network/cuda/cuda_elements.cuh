#pragma once

// Device code that the kernels of a residual network share. They read and write vectors of eight neighbouring channels.
// Their threads are laid out over an array [positions, channels] so that each thread has the same channels all the
// time.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "demos/common/cuda_check.hpp"
#include "demos/resnet/network/cuda/cuda_convolution.hpp"

namespace resnet::cuda {

inline constexpr int kVector = 8;                 // channels in a vector
inline constexpr int kThreads = 256;              // threads in a block
inline constexpr std::size_t kMostBlocks = 2112;  // sixteen for each of 132 multiprocessors

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

/// A vector in the element type of the memory. Vectors that are loaded ahead then take as few registers as possible.
template <typename T>
struct Raw;
template <>
struct Raw<__nv_bfloat16> {
  uint4 bits;
};
template <>
struct Raw<float> {
  Vector values;
};
__device__ inline Raw<float> load_raw(const float* place) { return {load(place)}; }
__device__ inline Raw<__nv_bfloat16> load_raw(const __nv_bfloat16* place) {
  return {*reinterpret_cast<const uint4*>(place)};
}
__device__ inline Vector values_of(const Raw<float>& raw) { return raw.values; }
__device__ inline Vector values_of(const Raw<__nv_bfloat16>& raw) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw.bits);
  Vector x;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    x.v[2 * i] = pair.x;
    x.v[2 * i + 1] = pair.y;
  }
  return x;
}
__device__ inline Vector load(const __nv_bfloat16* place) { return values_of(load_raw(place)); }
__device__ inline void store(__nv_bfloat16* place, const Vector& x) {
  uint4 raw;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
  *reinterpret_cast<uint4*>(place) = raw;
}

/// A block has columns x rows threads. All threads of a column have the same vector of channels. They go through the
/// positions along the rows.
struct Layout {
  unsigned columns;        // in a block
  unsigned rows;           // in a block
  unsigned column_groups;  // blocks along the channels
  unsigned row_groups;     // blocks along the positions

  Layout(std::size_t positions, std::size_t channels) {
    constexpr std::size_t kMostColumns = 64;
    constexpr std::size_t kRowsPerThread = 4;  // at least this many, if there are enough positions
    const std::size_t vectors = channels / kVector;
    columns = static_cast<unsigned>(std::min(vectors, kMostColumns));
    rows = std::max(1U, kThreads / columns);
    column_groups = static_cast<unsigned>((vectors + columns - 1) / columns);
    const std::size_t wanted = (positions + rows * kRowsPerThread - 1) / (rows * kRowsPerThread);
    row_groups = static_cast<unsigned>(
        std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, kMostBlocks / column_groups)));
  }
  dim3 grid() const { return {row_groups, column_groups}; }
  dim3 block() const { return {columns, rows}; }
};

/// The first channel of this thread. A thread whose first channel is not below the number of channels has nothing to
/// do.
__device__ inline std::size_t own_channel() { return (blockIdx.y * blockDim.x + threadIdx.x) * std::size_t{kVector}; }

/// The number of positions of several arrays that are loaded at once. It is limited by the number of registers.
template <typename T>
inline constexpr int kPositionsAtOnce = sizeof(T) == 2 ? 2 : 1;

/// The direction in which a kernel goes through an array. The part that the previous kernel has accessed last is still
/// in the cache, so the next kernel should begin there. Convolutions go upwards. So kernels that sum their output go
/// downwards, and kernels that then use the same arrays go upwards again.
enum class Direction { kUp, kDown };

/// Calls `use(p, load(p))` for positions p, p + step, ... of this thread, in groups of kAtOnce, as long as there are
/// whole groups. It loads all positions of a group before it uses the first one. With kDown, positions are counted from
/// the end.
template <int kAtOnce, Direction kDirection, class Load, class Use>
__device__ void for_positions_from(unsigned& p, unsigned step, unsigned positions, Load& load, Use& use) {
  const auto at = [=](unsigned counted) { return kDirection == Direction::kUp ? counted : positions - 1 - counted; };
  for (; p < positions && positions - p > (kAtOnce - 1) * step; p += kAtOnce * step) {
    decltype(load(p)) loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) loaded[i] = load(at(p + i * step));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) use(at(p + i * step), loaded[i]);
  }
}

/// Calls `use(p, load(p))` for each position of this thread. It loads kAtOnce positions at a time, and fewer at the
/// end, so that there are always several loads in flight.
template <int kAtOnce, Direction kDirection, class Load, class Use>
__device__ void for_own_positions(unsigned positions, Load load, Use use) {
  static_assert(kAtOnce <= 4);
  const unsigned step = gridDim.x * blockDim.y;
  unsigned p = blockIdx.x * blockDim.y + threadIdx.y;
  for_positions_from<kAtOnce, kDirection>(p, step, positions, load, use);
  if constexpr (kAtOnce > 2) for_positions_from<2, kDirection>(p, step, positions, load, use);
  if constexpr (kAtOnce > 1) for_positions_from<1, kDirection>(p, step, positions, load, use);
}

template <typename... P, typename... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, A... arguments) {
  kernel<<<grid, block, 0, stream>>>(static_cast<P>(arguments)...);
  demos::check_cuda(cudaGetLastError(), what);
}

/// The item of this thread, in kernels with one thread per item.
__device__ inline std::size_t own_item() { return blockIdx.x * std::size_t{kThreads} + threadIdx.x; }

template <typename... P, typename... A>
void launch_items(const char* what, void (*kernel)(P...), std::size_t items, cudaStream_t stream, A... arguments) {
  if (items == 0) return;
  launch(what, kernel, static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, stream, arguments...);
}

/// Calls `body` with a null pointer, whose type is a pointer to the type of the elements.
template <class Body>
void with_element(CudaMath math, Body body) {
  if (math == CudaMath::kBfloat16) {
    body(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}

}  // namespace resnet::cuda
