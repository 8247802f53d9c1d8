#pragma once

// From what the host has to what a function wants: conversions of element types that lose nothing are silent, others are
// asked for. Master only, but for convert, which any process can use.

#include <cmath>
#include <concepts>
#include <limits>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/output.hpp"

namespace syncrun {

/// A type whose values can be converted to elements: numbers and bool.
template <class U>
concept HostElement = std::is_arithmetic_v<U> || Element<U>;

/// Values that may lose digits when they are converted; made by lossy().
template <HostElement U, std::size_t N>
struct Lossy {
  ArrayView<const U, N> values;
};

namespace detail {

template <class U>
inline constexpr bool kIsHalf = std::is_same_v<U, float16> || std::is_same_v<U, bfloat16>;
template <class U>
inline constexpr bool kIsFloating = std::is_floating_point_v<U> || kIsHalf<U>;

/// Bits of a value that count: of a mantissa (with its leading one), or of an integer without its sign.
template <class U>
consteval int significant_bits() {
  if constexpr (std::is_same_v<U, float16>) return 11;
  else if constexpr (std::is_same_v<U, bfloat16>) return 8;
  else return std::numeric_limits<U>::digits;
}

/// Whether every value of a U is one of a T, by their types alone.
template <class U, class T>
consteval bool is_lossless() {
  if constexpr (std::is_same_v<U, T>) return true;
  else if constexpr (std::is_same_v<T, bool>) return false;
  else if constexpr (kIsFloating<U>) {
    // The two halves: one has more digits, the other more range.
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

/// Whether a value is within a T's range; digits behind it may go.
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
    // Both ends are powers of two, or one off; towards zero the digits behind the point go.
    const U lowest = static_cast<U>(std::numeric_limits<T>::min());
    // NOLINTNEXTLINE(bugprone-integer-division): half of the power of two behind the maximum
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

enum class Casts : bool { lossless, lossy };

template <class U, std::size_t N, Casts kCasts>
struct HostArray {
  using value_type = U;
  static constexpr std::size_t dimensions = N;
  static constexpr Casts casts = kCasts;
  ArrayView<const U, N> view;
};

// What an array of the host can be.
template <std::ranges::contiguous_range R>
auto host_array(const R& values) {
  using U = std::ranges::range_value_t<R>;
  static_assert(HostElement<U>, "the elements of an array of the host are numbers, or bool");
  return HostArray<U, 1, Casts::lossless>{{std::ranges::data(values), Shape<1>(std::ranges::size(values))}};
}
template <class U, std::size_t N>
auto host_array(const ArrayView<U, N>& view) {
  return HostArray<std::remove_const_t<U>, N, Casts::lossless>{{view.data(), view.shape()}};
}
template <class U, std::size_t N>
auto host_array(const Array<U, N>& array) {
  return HostArray<U, N, Casts::lossless>{array.view()};
}
template <Reduction kReduction, class U, std::size_t N>
auto host_array(const Output<kReduction, U, N>& output) {
  return HostArray<U, N, Casts::lossless>{{output.data(), output.shape()}};
}
template <class U, std::size_t N>
auto host_array(const Lossy<U, N>& lossy) {
  return HostArray<U, N, Casts::lossy>{lossy.values};
}

template <class T, class Host>
void check_conversion() {
  static_assert(Host::casts == Casts::lossy || is_lossless<typename Host::value_type, T>(),
                "this conversion can lose values: ask for it with lossy(values)");
}

template <class T, class Values>
auto data_from(const std::shared_ptr<SessionCore>& session, const Values& values, std::string_view name) {
  const auto host = host_array(values);
  using Host = std::remove_const_t<decltype(host)>;
  check_conversion<T, Host>();
  const auto& shape = host.view.shape();
  const bool is_as_wanted = std::is_same_v<typename Host::value_type, T>;
  const void* copied = is_as_wanted && !host.view.empty() ? host.view.data() : nullptr;
  Data<T, Host::dimensions> data(make_data(session, dtype_of<T>, shape.extents(), copied, name));
  if constexpr (!is_as_wanted) convert_elements<T>(host.view.span(), data.write().data());
  return data;
}

template <class T, std::size_t N, class Values>
Data<T, N> input_from(const std::shared_ptr<SessionCore>& session, std::type_identity<Data<T, N>>,
                      const Values& values) {
  static_assert(
      decltype(host_array(values))::dimensions == N,
      "this array has another number of dimensions than the function's parameter: view_of(values, shape) gives "
      "it one");
  return data_from<T>(session, values, {});
}

}  // namespace detail

/// Marks values whose conversion may lose digits: `lossy(doubles)` for a function of floats. A value that is out of the
/// range of the new type is an error even so.
template <class Values>
auto lossy(const Values& values) {
  const auto host = detail::host_array(values);
  using Host = std::remove_const_t<decltype(host)>;
  return Lossy<typename Host::value_type, Host::dimensions>{host.view};
}

/// The values as elements of type T, to see what data_as and inputs would store: silently where the types say that nothing
/// can be lost (int to double, bool to uint8), of lossy(values) else: floating numbers are rounded to nearest, or cut at
/// the point where T is an integer. Does not compile where a loss was not asked for; throws Error (usage) for a value
/// that is out of T's range, with its position.
template <Element T, class Values>
auto convert(const Values& values) {
  const auto host = detail::host_array(values);
  using Host = std::remove_const_t<decltype(host)>;
  detail::check_conversion<T, Host>();
  Array<T, Host::dimensions> result(host.view.shape());
  detail::convert_elements<T>(host.view.span(), result.data());
  return result;
}

}  // namespace syncrun
