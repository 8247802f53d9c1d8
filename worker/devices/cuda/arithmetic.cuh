#pragma once

// The types of elements on the device, and how two elements are combined.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

/// The type in which elements of type T are computed.
template <class T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<__half> {
  using type = float;
};
template <>
struct Arithmetic<__nv_bfloat16> {
  using type = float;
};

/// An average is a sum here, because the values are already multiplied by their weights.
template <class A>
__device__ inline A combine(Reduction reduction, A a, A b) {
  static_assert(static_cast<int>(Reduction::gather) == 5, "say how the new reduction combines two values");
  switch (reduction) {
    case Reduction::min: return b < a || b != b ? b : a;  // NaN if one of them is NaN
    case Reduction::max: return a < b || b != b ? b : a;
    case Reduction::prod:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      else return a * b;
    case Reduction::avg:
    case Reduction::sum:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      else return a + b;
    case Reduction::gather: return a;  // it combines nothing
  }
  return a;
}

/// Calls f with a null pointer to the type that elements have on the device.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float16: return f(static_cast<__half*>(nullptr));
    case DType::bfloat16: return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
    case DType::int8: return f(static_cast<std::int8_t*>(nullptr));
    case DType::int16: return f(static_cast<std::int16_t*>(nullptr));
    case DType::int32: return f(static_cast<std::int32_t*>(nullptr));
    case DType::int64: return f(static_cast<std::int64_t*>(nullptr));
    case DType::uint16: return f(static_cast<std::uint16_t*>(nullptr));
    case DType::uint32: return f(static_cast<std::uint32_t*>(nullptr));
    case DType::uint64: return f(static_cast<std::uint64_t*>(nullptr));
    case DType::uint8:
    case DType::boolean: return f(static_cast<std::uint8_t*>(nullptr));
  }
}

/// The same for floating-point types. Does nothing for others.
template <class F>
void with_floating_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float16: return f(static_cast<__half*>(nullptr));
    case DType::bfloat16: return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
    case DType::int8:
    case DType::int16:
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::uint16:
    case DType::uint32:
    case DType::uint64:
    case DType::boolean: return;
  }
}

}  // namespace syncrun::detail::worker::devices::cuda::kernels
