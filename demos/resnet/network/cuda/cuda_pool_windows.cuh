#pragma once

// Loads the gradients of the max-pool's windows, a vector of channels at a time.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/network/cuda/cuda_elements.cuh"

namespace resnet::cuda {

/// The gradient of a window in the element type of the memory: see PoolGradient.
template <typename T>
struct PoolLoad {
  Raw<T> g1;
  Raw<T> g2;
  uint2 which;

  __device__ static PoolLoad at(const T* g1, const T* g2, const std::uint8_t* which, std::size_t place) {
    return {load_raw(g1 + place), g2 == nullptr ? Raw<T>{} : load_raw(g2 + place),
            *reinterpret_cast<const uint2*>(which + place)};
  }
  __device__ Vector gradient() const {
    Vector sum = values_of(g1);
    const Vector more = values_of(g2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] += more.v[i];
    return sum;
  }
  __device__ unsigned number(int i) const { return ((i < 4 ? which.x : which.y) >> (8 * (i % 4))) & 0xFFU; }
};

}  // namespace resnet::cuda
