#pragma once

// Device functions that the demos' kernels for layers share: they read and write rows of a layer's output four units at
// a time, and complete a loss.

#include "demos/common/cuda_kernels.hpp"
#include "demos/common/cuda_launch.cuh"
#include "demos/common/philox.hpp"

namespace demos::cuda {

/// The number of elements that a thread handles at a time: one draw of Philox, or one 16-byte load of floats.
inline constexpr std::size_t kQuad = 4;

/// Four neighbouring elements of a row. The last quad of a row may have fewer.
template <typename T>
struct alignas(16) Quad {
  T v[kQuad];
};

/// Returns whether all rows can be read and written in whole quads.
template <typename... T>
bool has_whole_quads(std::size_t units, const T*... arrays) {
  return units % kQuad == 0 && ((reinterpret_cast<std::uintptr_t>(arrays) % alignof(Quad<float>) == 0) && ...);
}

template <bool kWhole, typename T>
__device__ Quad<T> load(const T* from, std::size_t count) {
  if constexpr (kWhole) return *reinterpret_cast<const Quad<T>*>(from);
  Quad<T> quad{};
  for (std::size_t i = 0; i < kQuad; ++i) {
    if (i < count) quad.v[i] = from[i];
  }
  return quad;
}

template <bool kWhole, typename T>
__device__ void store(T* to, const Quad<T>& quad, std::size_t count) {
  if constexpr (kWhole) {
    *reinterpret_cast<Quad<T>*>(to) = quad;
  } else {
    for (std::size_t i = 0; i < kQuad; ++i) {
      if (i < count) to[i] = quad.v[i];
    }
  }
}

/// Drops units of the quad. It draws as demos::dropout does, so that the masks are the same.
template <typename T>
__device__ void drop(Quad<T>& quad, const DropoutMask& mask, std::size_t row, std::size_t first_unit) {
  const auto id = static_cast<std::uint64_t>(mask.row_ids[row]);
  const PhiloxCounter counter{static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32),
                              static_cast<std::uint32_t>(first_unit / kQuad) | std::uint32_t{mask.layer} << 24,
                              mask.key->step};
  const PhiloxCounter words = philox4x32_10(counter, mask.key->seed);
  const auto dropped_below = static_cast<std::uint32_t>(mask.rate * 0x1p32);
  const T factor = static_cast<T>(1 / (1 - mask.rate));
  for (std::size_t i = 0; i < kQuad; ++i) quad.v[i] = words[i] >= dropped_below ? quad.v[i] * factor : T{0};
}

/// Adds up the losses that `blocks` blocks have written. One warp calls this.
template <typename T>
__device__ void finish_loss(const LossPlace& place, const Partials<T>& partials, unsigned blocks) {
  double sum = 0;
  long long correct = 0;
  for (unsigned block = threadIdx.x; block < blocks; block += kLanes) {
    sum += __ldcg(partials.losses + block);
    correct += __ldcg(reinterpret_cast<const long long*>(partials.correct) + block);
  }
  sum = warp_sum(sum) / static_cast<double>(place.of_rows);
  correct = warp_sum(correct);
  if (threadIdx.x != 0) return;
  const bool adds = place.accumulate == Accumulate::kYes;
  *place.mean_loss = (adds ? *place.mean_loss : 0) + sum;
  *place.correct = (adds ? *place.correct : 0) + correct;
}

}  // namespace demos::cuda
