#pragma once

// Conversions of host arrays to the element types that functions require. If a conversion can lose digits, the program
// must mark the values with lossy(). Any process can use convert(). The rest is for the master only.

#include <concepts>
#include <ranges>
#include <string_view>
#include <type_traits>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/conversion.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/output.hpp"

namespace syncrun {

/// Converts values to elements of type T and returns an Array of them. Session::data_as and Function::inputs convert
/// values in the same way. If T can represent every value of the old type (int to double, bool to uint8), pass the
/// values as they are. Otherwise pass lossy(values); without lossy(), the call does not compile. If T is a
/// floating-point type, a lossy conversion rounds each value to the nearest value of T. If T is an integer type, the
/// conversion drops the digits after the decimal point. Throws Error (usage) if a value is out of the range of T. The
/// message contains the position of that value.
template <Element T, class Values>
auto convert(const Values& values);

/// Marks values whose conversion may lose digits. For example, pass `lossy(doubles)` to a function that takes floats. A
/// value that is out of the range of the new type is still an error.
template <class Values>
auto lossy(const Values& values);

/// A type whose values can be converted to elements: a number type or bool.
template <class U>
concept HostElement = std::is_arithmetic_v<U> || Element<U>;

/// Values that may lose digits in a conversion. lossy() makes them.
template <HostElement U, std::size_t N>
struct Lossy {
  ArrayView<const U, N> values;
};

namespace detail {

enum class Casts : bool { lossless, lossy };

template <class U, std::size_t N, Casts kCasts>
struct HostArray {
  using value_type = U;
  static constexpr std::size_t dimensions = N;
  static constexpr Casts casts = kCasts;
  ArrayView<const U, N> view;
};

// The possible kinds of host arrays.
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

template <class Values>
auto lossy(const Values& values) {
  const auto host = detail::host_array(values);
  using Host = std::remove_const_t<decltype(host)>;
  return Lossy<typename Host::value_type, Host::dimensions>{host.view};
}

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
