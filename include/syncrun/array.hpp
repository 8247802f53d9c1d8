#pragma once

// Host arrays, views and shapes. Arrays are row-major, and the first dimension is the rows.

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun {

template <std::size_t N>
class Shape;
template <class T, std::size_t N>
class ArrayView;

/// A row-major array in ordinary memory of this process. Members such as Shared::gather and Shared::get return an Array
/// to the master.
template <Element T, std::size_t N>
class Array {
 public:
  Array() = default;
  /// Zero-filled.
  explicit Array(const Shape<N>& shape)
      : shape_(shape), values_(std::make_unique<T[]>(static_cast<std::size_t>(shape.elements()))) {}

  /// The extents: rows first.
  const Shape<N>& shape() const noexcept { return shape_; }
  /// The first extent; 1 for a scalar.
  std::int64_t rows() const noexcept { return shape_.rows(); }
  /// The number of elements. 0 for an array that was default-constructed or moved from.
  std::int64_t size() const noexcept { return values_ ? shape_.elements() : 0; }
  /// The address of the first element.
  T* data() noexcept { return values_.get(); }
  const T* data() const noexcept { return values_.get(); }
  /// A view of all elements. It is valid as long as the array.
  ArrayView<T, N> view() noexcept { return {values_.get(), shape_}; }
  ArrayView<const T, N> view() const noexcept { return {values_.get(), shape_}; }
  /// All elements, in row-major order.
  std::span<T> span() noexcept { return {values_.get(), static_cast<std::size_t>(size())}; }
  std::span<const T> span() const noexcept { return {values_.get(), static_cast<std::size_t>(size())}; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size(); }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size(); }
  /// Row `row`: an element if the array has one dimension, else a view of N-1 dimensions.
  decltype(auto) operator[](std::int64_t row) const noexcept { return view()[row]; }
  decltype(auto) operator[](std::int64_t row) noexcept { return view()[row]; }
  /// The element at these indices, one per dimension. Does not check their range.
  template <std::integral... Index>
  const T& operator()(Index... index) const noexcept {
    return view()(index...);
  }
  /// A copy of all elements, in row-major order.
  std::vector<T> to_vector() const { return {begin(), end()}; }

 private:
  Shape<N> shape_{};
  std::unique_ptr<T[]> values_;
};

/// A view of a row-major array. The view does not own the elements. In a body on a CUDA device, `data()` points to
/// device memory, and host code cannot access the elements. Everywhere else, `view(i, j)` is an element, and `view[i]`
/// is a row. A view is a contiguous range, so it converts to std::span<T>.
template <class T, std::size_t N>
class ArrayView {
 public:
  using element_type = T;

  constexpr ArrayView() = default;
  /// A view of elements that the caller owns, in row-major order.
  constexpr ArrayView(T* data, const Shape<N>& shape) noexcept : data_(data), shape_(shape) {}

  /// The address of the first element.
  constexpr T* data() const noexcept { return data_; }
  /// The extents: rows first. With an argument, the extent of this dimension.
  constexpr const Shape<N>& shape() const noexcept { return shape_; }
  constexpr std::int64_t shape(std::size_t dimension) const noexcept { return shape_[dimension]; }
  /// The first extent; 1 for a scalar.
  constexpr std::int64_t rows() const noexcept { return shape_.rows(); }
  /// The number of elements of a row; 1 for a scalar.
  constexpr std::int64_t elements_per_row() const noexcept { return shape_.elements_per_row(); }
  /// The number of elements.
  constexpr std::int64_t size() const noexcept { return shape_.elements(); }
  /// Whether there are no elements.
  constexpr bool empty() const noexcept { return size() == 0; }
  /// All elements, in row-major order.
  constexpr std::span<T> span() const noexcept { return {data_, static_cast<std::size_t>(size())}; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size(); }

  /// Row `row`: an element if the view has one dimension, else a view of N-1 dimensions.
  constexpr decltype(auto) operator[](std::int64_t row) const noexcept
    requires(N > 0)
  {
    assert(row >= 0 && row < rows());
    if constexpr (N == 1) {
      return (data_[row]);
    } else {
      Shape<N - 1> below;
      for (std::size_t i = 1; i < N; ++i) below[i - 1] = shape_[i];
      return ArrayView<T, N - 1>(data_ + row * elements_per_row(), below);
    }
  }

  /// Rows [begin, end).
  constexpr ArrayView slice(std::int64_t begin, std::int64_t end) const noexcept
    requires(N > 0)
  {
    assert(begin >= 0 && begin <= end && end <= rows());
    Shape<N> part = shape_;
    part[0] = end - begin;
    return {data_ + begin * elements_per_row(), part};
  }

  /// The element at these indices, one per dimension. Does not check their range.
  template <std::integral... Index>
    requires(sizeof...(Index) == N)
  constexpr T& operator()(Index... index) const noexcept {
    const std::array<std::int64_t, N> at{static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < N; ++i) {
      assert(at[i] >= 0 && at[i] < shape_[i]);
      offset = offset * shape_[i] + at[i];
    }
    return data_[offset];
  }

 private:
  T* data_ = nullptr;
  Shape<N> shape_{};
};

/// The largest number of dimensions of an array.
inline constexpr std::size_t kMaxDimensions = 6;

/// The extents of an array of N dimensions, in elements. A program can write a Shape as a braced list: `{500, 784}`.
template <std::size_t N>
class Shape {
  static_assert(N <= kMaxDimensions, "Syncrun arrays have at most six dimensions");

 public:
  constexpr Shape() = default;
  /// The extents, in elements: `Shape(500, 784)`, or an array of N numbers. Does not check that they are positive.
  template <std::integral... Extents>
    requires(sizeof...(Extents) == N && N > 0)
  constexpr Shape(Extents... extents) noexcept  // NOLINT(google-explicit-constructor): written as {500, 784}
      : extents_{detail::to_extent(extents)...} {}
  explicit constexpr Shape(const std::array<std::int64_t, N>& extents) noexcept : extents_(extents) {}

  /// The number of dimensions, N.
  static constexpr std::size_t dimensions() noexcept { return N; }
  /// The extent of a dimension.
  constexpr std::int64_t operator[](std::size_t dimension) const noexcept { return extents_[dimension]; }
  constexpr std::int64_t& operator[](std::size_t dimension) noexcept { return extents_[dimension]; }
  /// All extents.
  constexpr std::span<const std::int64_t> extents() const noexcept { return {extents_.data(), N}; }
  /// The first extent; 1 for a scalar.
  constexpr std::int64_t rows() const noexcept {
    if constexpr (N == 0) return 1;
    else return extents_[0];
  }
  /// The product of all extents. The product can overflow, unless a function such as Session::data has checked the
  /// shape.
  constexpr std::int64_t elements() const noexcept {
    std::int64_t count = 1;
    for (const auto extent : extents_) count *= extent;
    return count;
  }
  /// The product of all extents except the first; 1 for a scalar.
  constexpr std::int64_t elements_per_row() const noexcept {
    std::int64_t count = 1;
    for (std::size_t i = 1; i < N; ++i) count *= extents_[i];
    return count;
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, N> extents_{};
};

template <std::integral... Extents>
Shape(Extents...) -> Shape<sizeof...(Extents)>;

namespace detail {
/// The extents of an array with any number of dimensions. Unused places are zero.
using Extents = std::array<std::int64_t, kMaxDimensions>;
template <std::size_t N>
Shape<N> to_shape(std::span<const std::int64_t> extents) noexcept {
  Shape<N> shape;
  for (std::size_t i = 0; i < N; ++i) shape[i] = extents[i];
  return shape;
}
template <std::size_t N>
Extents to_extents(const Shape<N>& shape) noexcept {
  Extents extents{};
  for (std::size_t i = 0; i < N; ++i) extents[i] = shape[i];
  return extents;
}
}  // namespace detail

/// The extents as text: "[500, 784]".
SYNCRUN_EXPORT std::string to_string(std::span<const std::int64_t> extents);
template <std::size_t N>
std::string to_string(const Shape<N>& shape) {
  return to_string(shape.extents());
}

namespace detail {
template <class T, std::size_t N>
constexpr void as_array_view(const ArrayView<T, N>&);
/// An ArrayView or a class derived from it, such as the parameter types of bodies.
template <class V>
concept IsArrayView = requires(const V& view) { as_array_view(view); };
}  // namespace detail

/// Makes a view of values that the caller owns: `view_of(values, Shape{500, 784})`. Throws Error (usage) if the number
/// of values does not match the shape.
template <std::ranges::contiguous_range R, std::size_t N>
auto view_of(const R& values, const Shape<N>& shape) {
  detail::check_count(detail::count_of(values), shape.extents());
  return ArrayView<const std::ranges::range_value_t<R>, N>(std::ranges::data(values), shape);
}

}  // namespace syncrun

/// An iterator of a view stays valid after the view is destroyed, because the view does not own the elements.
template <syncrun::detail::IsArrayView V>
inline constexpr bool std::ranges::enable_borrowed_range<V> = true;
