#pragma once

// Conversions of numbers between element types: which of them lose nothing, and which values are in the range of a
// type.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun::detail {

template <class U>
inline constexpr bool kIsHalf = std::is_same_v<U, float16> || std::is_same_v<U, bfloat16>;
template <class U>
inline constexpr bool kIsFloating = std::is_floating_point_v<U> || kIsHalf<U>;

/// The number of significant bits of a type: of the mantissa (with its leading one), or of an integer without its sign.
template <class U>
consteval int significant_bits() {
  if constexpr (std::is_same_v<U, float16>) return 11;
  else if constexpr (std::is_same_v<U, bfloat16>) return 8;
  else return std::numeric_limits<U>::digits;
}

/// Whether T can represent every value of U. Depends on the types only.
template <class U, class T>
consteval bool is_lossless() {
  if constexpr (std::is_same_v<U, T>) return true;
  else if constexpr (std::is_same_v<T, bool>) return false;
  else if constexpr (kIsFloating<U>) {
    // Neither of the two half types contains the other: float16 has more digits, bfloat16 has more range.
    return kIsFloating<T> && significant_bits<T>() > significant_bits<U>() && !(kIsHalf<U> && kIsHalf<T>);
  } else {
    return significant_bits<T>() >= significant_bits<U>() &&
           (kIsFloating<T> || !std::is_signed_v<U> || std::is_signed_v<T>);
  }
}

template <class T, class U>
T converted(U value) noexcept {
  if constexpr (kIsHalf<U>) return converted<T>(static_cast<float>(value));
  else if constexpr (kIsHalf<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

/// Whether a value is within the range of T. The conversion may still lose digits.
template <class T, class U>
bool is_in_range(U value) noexcept {
  if constexpr (kIsHalf<U>) {
    return is_in_range<T>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value == U(0) || value == U(1);
  } else if constexpr (kIsFloating<T>) {
    if constexpr (kIsFloating<U>) {
      if (!std::isfinite(value)) return true;  // infinities and NaN are values of every floating type
    }
    if constexpr (kIsHalf<T>) return std::isfinite(static_cast<float>(converted<T>(value)));
    else return std::abs(static_cast<long double>(value)) <= static_cast<long double>(std::numeric_limits<T>::max());
  } else if constexpr (std::is_floating_point_v<U>) {
    // Both ends of the range are powers of two, or differ by one from them. The conversion cuts off the digits after
    // the point.
    const U lowest = static_cast<U>(std::numeric_limits<T>::min());
    // NOLINTNEXTLINE(bugprone-integer-division): half of the power of two above the maximum
    const U beyond = static_cast<U>(std::numeric_limits<T>::max() / 2 + 1) * U(2);
    return (value >= lowest || value > lowest - U(1)) && value < beyond;
  } else {
    using Wide = std::conditional_t<std::is_signed_v<U>, std::int64_t, std::uint64_t>;
    return std::in_range<T>(static_cast<Wide>(value));
  }
}

/// Throws Error (usage) at the first value that is out of T's range.
template <class T, class U>
void convert_elements(std::span<const U> values, T* to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (!is_lossless<U, T>()) {
      if (!is_in_range<T>(values[i])) refuse_value(dtype_of<T>, i, converted<long double>(values[i]));
    }
    to[i] = converted<T>(values[i]);
  }
}

}  // namespace syncrun::detail
