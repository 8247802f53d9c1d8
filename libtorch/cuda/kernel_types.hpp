#pragma once

// What the kernels have in common. Files of kernels include no header of LibTorch, because nvcc takes minutes for these.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace syncrun::libtorch::detail::kernels {

/// The type of the elements of an array.
enum class Element : std::uint8_t { bfloat16, float32, float64 };

/// The type of sums of elements.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// What a thread reads and writes at once. With kWidth 1, arrays need only the alignment of T.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

/// Whether all of these arrays begin at a multiple of `bytes`.
template <class... Array>
bool begin_at_multiples(std::uintptr_t bytes, const Array*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % bytes == 0) && ...);
}

/// Calls use(T{}) with the type of the elements.
template <class Use>
void with_type(Element type, Use&& use) {
  switch (type) {
    case Element::bfloat16: return use(__nv_bfloat16{});
    case Element::float32: return use(float{});
    case Element::float64: return use(double{});
  }
}

}  // namespace syncrun::libtorch::detail::kernels
