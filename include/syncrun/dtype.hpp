#pragma once

// The element types of arrays that processes share, and DType, which represents an element type at run time.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "syncrun/detail/export.hpp"

namespace syncrun {

/// An element type, as a value at run time: float16, bfloat16, float32 and float64; int8, int16, int32 and int64; uint8,
/// uint16, uint32 and uint64; and boolean, which is a bool.
enum class DType : std::uint8_t {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
};

/// The size of one element in bytes.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
    case DType::uint64: return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32: return 4;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
    case DType::uint16: return 2;
    case DType::int8:
    case DType::uint8:
    case DType::boolean: return 1;
  }
  return 0;
}

/// The name of an element type: "float32", "int64", "bool", ...
SYNCRUN_EXPORT std::string_view to_string(DType dtype) noexcept;

/// A 16-bit floating-point number (IEEE 754 binary16). This type is only for storage: arithmetic converts its values to
/// float. Its bits are the same as those of CUDA's `__half`.
class float16 {
 public:
  float16() = default;
  /// The nearest float16. Halfway cases round to even, and too large values to infinity.
  float16(float value) noexcept : bits_(round_from(value)) {}  // NOLINT(google-explicit-constructor)
  /// The same number as a float, exactly.
  operator float() const noexcept;  // NOLINT(google-explicit-constructor)
  /// The 16 bits of the number.
  std::uint16_t bits() const noexcept { return bits_; }
  /// The number with these bits.
  static float16 from_bits(std::uint16_t bits) noexcept { return std::bit_cast<float16>(bits); }

 private:
  static std::uint16_t round_from(float value) noexcept;
  std::uint16_t bits_;
};

/// A 16-bit floating-point number: the upper 16 bits of a float. This type is only for storage: arithmetic converts its
/// values to float. Its bits are the same as those of CUDA's `__nv_bfloat16`.
class bfloat16 {
 public:
  bfloat16() = default;
  /// The nearest bfloat16. Halfway cases round to even.
  bfloat16(float value) noexcept : bits_(round_from(value)) {}  // NOLINT(google-explicit-constructor)
  /// The same number as a float, exactly.
  operator float() const noexcept {  // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits_) << 16U);
  }
  /// The 16 bits of the number.
  std::uint16_t bits() const noexcept { return bits_; }
  /// The number with these bits.
  static bfloat16 from_bits(std::uint16_t bits) noexcept { return std::bit_cast<bfloat16>(bits); }

 private:
  static std::uint16_t round_from(float value) noexcept {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((word >> 16U) | 0x40U);  // quiet NaN
    return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16U) & 1U)) >> 16U);  // to nearest even
  }
  std::uint16_t bits_;
};

inline float16::operator float() const noexcept {
  const std::uint32_t sign = (bits_ & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits_ >> 10U) & 0x1fU;
  const std::uint32_t mantissa = bits_ & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13U));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

inline std::uint16_t float16::round_from(float value) noexcept {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16U) & 0x8000U);
  const std::uint32_t magnitude = word & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;   // NaN
  if (magnitude >= 0x477ff000U) return sign | 0x7c00U;  // rounds to infinity
  if (magnitude < 0x38800000U) {                        // subnormal: the addition rounds
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U) - (112U << 23U);
  return static_cast<std::uint16_t>(sign | (rounded >> 13U));
}

namespace detail {
template <class T, class... Allowed>
inline constexpr bool kIsOneOf = (std::same_as<T, Allowed> || ...);
}  // namespace detail

/// A type that can be the element of an array shared between processes. Compilers print this list when they reject
/// another type.
template <class T>
concept Element = detail::kIsOneOf<T, float16, bfloat16, float, double, std::int8_t, std::int16_t, std::int32_t,
                                   std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, bool>;

namespace detail {
template <class T>
struct DTypeOf {
  static_assert(Element<T>,
                "the elements of an array that is shared between processes are: float, double, syncrun::float16, "
                "syncrun::bfloat16, std::int8_t to std::int64_t, std::uint8_t to std::uint64_t, or bool");
  static constexpr DType value{};  // avoids a second error message
};
// clang-format off
template <> struct DTypeOf<float16>       { static constexpr DType value = DType::float16; };
template <> struct DTypeOf<bfloat16>      { static constexpr DType value = DType::bfloat16; };
template <> struct DTypeOf<float>         { static constexpr DType value = DType::float32; };
template <> struct DTypeOf<double>        { static constexpr DType value = DType::float64; };
template <> struct DTypeOf<std::int8_t>   { static constexpr DType value = DType::int8; };
template <> struct DTypeOf<std::int16_t>  { static constexpr DType value = DType::int16; };
template <> struct DTypeOf<std::int32_t>  { static constexpr DType value = DType::int32; };
template <> struct DTypeOf<std::int64_t>  { static constexpr DType value = DType::int64; };
template <> struct DTypeOf<std::uint8_t>  { static constexpr DType value = DType::uint8; };
template <> struct DTypeOf<std::uint16_t> { static constexpr DType value = DType::uint16; };
template <> struct DTypeOf<std::uint32_t> { static constexpr DType value = DType::uint32; };
template <> struct DTypeOf<std::uint64_t> { static constexpr DType value = DType::uint64; };
template <> struct DTypeOf<bool>          { static constexpr DType value = DType::boolean; };
// clang-format on
}  // namespace detail

/// An element type that supports averages.
template <class T>
concept FloatingElement =
    Element<T> && (std::floating_point<T> || std::same_as<T, float16> || std::same_as<T, bfloat16>);

/// The DType of an element type: `dtype_of<float>` is DType::float32.
template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

}  // namespace syncrun
