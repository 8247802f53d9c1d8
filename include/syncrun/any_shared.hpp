#pragma once

// Lists of shared variables, for collectives on several variables in one call:
// `session.all_reduce({weights, bias}, sr::Reduction::avg)`. A name can stand in place of a variable.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/data.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

/// A shared variable of any element type and number of dimensions, or the name of such a variable. The session looks up
/// the name when a collective uses it.
class AnyShared {
 public:
  /// A variable, or the name of one.
  template <Element T, std::size_t N>
  AnyShared(const Shared<T, N>& variable)  // NOLINT(google-explicit-constructor)
      : record_(detail::record_of(variable)) {}
  AnyShared(std::string_view name) : name_(name) {}  // NOLINT(google-explicit-constructor)
  AnyShared(const char* name) : name_(name) {}       // NOLINT(google-explicit-constructor)

 private:
  friend struct detail::HandleAccess;

  std::shared_ptr<detail::VariableRecord> record_;  // null if this object has a name
  std::string name_;
};

/// The variables of one collective, written as a braced list of variables or names. A variable may occur only once in
/// the list.
class SharedList {
 public:
  /// The variables of a braced list or of a vector.
  SharedList(std::initializer_list<AnyShared> variables) : variables_(variables) {}
  SharedList(std::vector<AnyShared> variables)  // NOLINT(google-explicit-constructor)
      : variables_(std::move(variables)) {}
  /// The list, in its order.
  std::span<const AnyShared> variables() const noexcept { return variables_; }

 private:
  std::vector<AnyShared> variables_;
};

/// A variable and its new values, for a collective on several variables: `{weights, values, {500, 784}}`,
/// `{labels, data}`. The caller owns the values. They must live until the collective returns. A name can stand in place
/// of the variable. The collective then looks up the name, and checks the element type and the number of dimensions of
/// the variable.
class Assignment {
 public:
  /// The new values of a variable, or of the variable with this name. Throws Error (usage) if the number of values does
  /// not match the shape.
  template <Element T, std::size_t N, detail::ValuesOf<T> R>
  Assignment(const Shared<T, N>& variable, const R& values, const Shape<N>& shape)
      : Assignment(dtype_of<T>, N, variable, delivery_of(values, shape)) {}
  template <Element T, detail::ValuesOf<T> R>
  Assignment(const Shared<T, 1>& variable, const R& values)
      : Assignment(dtype_of<T>, 1, variable, delivery_of(values, Shape<1>(std::ranges::size(values)))) {}
  template <Element T, std::size_t N>
  Assignment(const Shared<T, N>& variable, const Data<T, N>& data)
      : Assignment(dtype_of<T>, N, variable, {.variable = nullptr, .data = detail::record_of(data)}) {}

  /// The new values of the variable with this name. Throws Error (usage) if the number of values does not match the
  /// shape.
  template <std::ranges::contiguous_range R, std::size_t N>
  Assignment(std::string_view name, const R& values, const Shape<N>& shape)
      : Assignment(dtype_of<std::ranges::range_value_t<R>>, N, name, delivery_of(values, shape)) {}
  template <Element T, std::size_t N>
  Assignment(std::string_view name, const Data<T, N>& data)
      : Assignment(dtype_of<T>, N, name, {.variable = nullptr, .data = detail::record_of(data)}) {}

 private:
  friend struct detail::HandleAccess;
  struct Parts {
    AnyShared variable;
    detail::Delivery delivery;
    DType dtype;
    std::size_t dimensions;
  };

  Assignment(DType dtype, std::size_t dimensions, AnyShared variable, detail::Delivery delivery)
      : parts_{std::move(variable), std::move(delivery), dtype, dimensions} {}
  template <class R, std::size_t N>
  static detail::Delivery delivery_of(const R& values, const Shape<N>& shape) {
    detail::check_count(detail::count_of(values), shape.extents());
    return {.variable = nullptr, .values = std::ranges::data(values), .extents = detail::to_extents(shape)};
  }

  Parts parts_;
};

namespace detail {

template <class S>
inline constexpr bool kIsShared = false;
template <class T, std::size_t N>
inline constexpr bool kIsShared<Shared<T, N>> = true;

/// An array for the values of the variable. It has no elements yet.
template <Element T, std::size_t N>
Array<T, N> array_for(const Shared<T, N>&) {
  return {};
}
}  // namespace detail

}  // namespace syncrun
