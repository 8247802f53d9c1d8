#pragma once

// Data: an array in shared memory that every process of the session has mapped. Made by Session::data. Master only.

#include <concepts>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

template <Element T, std::size_t N>
class WriteGuard;

namespace detail {
template <class R, class T>
concept ValuesOf = std::ranges::contiguous_range<R> && std::same_as<std::ranges::range_value_t<R>, T>;
}  // namespace detail

/// An array of N dimensions in shared memory: element type and number of dimensions are fixed, the shape can change. Or a
/// file (Session::map_npy), which is only read: members that would change it throw Error (usage).
/// A handle: copies refer to the same array, and the memory is given back with the last of them. All members throw
/// Error (usage) once the session is closed, and those of a handle that was moved from do. Workers see it as Scattered or Broadcast, never a copy of their own.
template <Element T, std::size_t N>
class Data {
  static_assert(N >= 1, "a single number is passed by value");

 public:
  explicit Data(std::shared_ptr<detail::DataRecord> record) noexcept : record_(std::move(record)) {}

  Shape<N> shape() const { return view().shape(); }
  std::int64_t rows() const { return view().rows(); }
  std::int64_t size() const { return view().size(); }
  /// For messages; may be empty.
  const std::string& name() const { return detail::name_of(held()); }
  /// Bytes of memory that it has, in use or not.
  std::size_t capacity_bytes() const { return detail::capacity_bytes_of(held()); }

  /// The elements, to read. Valid until the next set, resize or free.
  ArrayView<const T, N> view() const { return detail::array_of(held()).template view<const T, N>(); }
  std::span<const T> span() const { return view().span(); }
  /// One element, or some of the rows, to read. Throw Error (usage) if they are not there.
  template <std::integral... Index>
    requires(sizeof...(Index) == N)
  T at(Index... index) const {
    const std::array<std::int64_t, N> place{static_cast<std::int64_t>(index)...};
    const std::array<bool, N> is_beyond{(std::is_unsigned_v<Index> && static_cast<std::int64_t>(index) < 0)...};
    detail::check_element(held(), place, is_beyond);
    return view()(index...);
  }
  ArrayView<const T, N> slice(Slice rows) const {
    detail::check_rows(held(), rows);
    return view().slice(rows.begin, rows.end);
  }

  /// Opens the array for writing; see WriteGuard. Throws Error (usage) if it is open already.
  [[nodiscard]] WriteGuard<T, N> write() { return WriteGuard<T, N>(record()); }

  /// Gives it new values and a new shape; waits for calls that read it. Throws Error: usage if the number of values is
  /// not that of the shape, system if there is not enough memory (says how much was wanted and there was).
  template <detail::ValuesOf<T> R>
  void set(const R& values, const Shape<N>& shape, Allocation allocation = {}) {
    detail::check_count(detail::count_of(values), shape.extents());
    detail::set_data(held(), shape.extents(), std::ranges::data(values), allocation.oversize);
  }
  /// New values in the present shape; of one dimension, in the shape of the values.
  template <detail::ValuesOf<T> R>
  void set(const R& values) {
    if constexpr (N == 1) set(values, Shape<1>(std::ranges::size(values)));
    else set(values, shape());
  }

  /// New values for whole rows, from `first_row` on. Throws Error (usage) if these are not rows, or are not there.
  template <detail::ValuesOf<T> R>
  void set_rows(std::int64_t first_row, const R& values) {
    detail::set_rows_of_data(held(), first_row, detail::count_of(values), std::ranges::data(values));
  }
  /// One value for all elements.
  void fill(T value) {
    const auto open = write();
    std::uninitialized_fill(open.begin(), open.end(), value);  // elements are plain values; spares <algorithm>
  }

  /// Changes the shape. Elements keep their place in row-major order; new ones are zero. Memory grows when it has to, and
  /// shrinks with free() only. Throws as set.
  void resize(const Shape<N>& shape, Allocation allocation = {}) {
    detail::resize_data(held(), shape.extents(), allocation.oversize);
  }
  /// The same for the number of rows alone.
  void resize_rows(std::int64_t rows, Allocation allocation = {}) {
    Shape<N> shape = this->shape();
    shape[0] = rows;
    resize(shape, allocation);
  }

  /// Gives the memory back now. The array is left with zero rows.
  void free() { detail::free_data(held()); }

  /// The framework's own handle.
  const std::shared_ptr<detail::DataRecord>& record() const {
    held();
    return record_;
  }

 private:
  friend struct detail::HandleAccess;
  detail::DataRecord& held() const { return detail::held(record_, "Data"); }

  std::shared_ptr<detail::DataRecord> record_;
};

/// Permission to write a Data, for as long as it lives. Making one waits for calls in flight that read the Data; while
/// it is open, a call on the Data is an error. So nothing is ever written while a worker reads it.
template <Element T, std::size_t N>
class WriteGuard {
 public:
  explicit WriteGuard(std::shared_ptr<detail::DataRecord> record)
      : record_(std::move(record)), view_(detail::begin_write(*record_).view<T, N>()) {}
  WriteGuard(WriteGuard&& other) noexcept
      : record_(std::move(other.record_)), view_(std::exchange(other.view_, ArrayView<T, N>())) {}
  WriteGuard& operator=(WriteGuard&&) = delete;
  ~WriteGuard() {
    if (record_) detail::end_write(*record_);
  }

  const ArrayView<T, N>& view() const {
    held();
    return view_;
  }
  std::span<T> span() const { return view().span(); }
  T* data() const { return view().data(); }
  const Shape<N>& shape() const { return view().shape(); }
  T* begin() const { return view().begin(); }
  T* end() const { return view().end(); }
  decltype(auto) operator[](std::int64_t row) const { return view()[row]; }
  template <std::integral... Index>
  T& operator()(Index... index) const {
    return view()(index...);
  }
  /// Some of the rows. Throws Error (usage) if they are not there.
  ArrayView<T, N> slice(Slice rows) const {
    detail::check_rows(held(), rows);
    return view_.slice(rows.begin, rows.end);
  }

 private:
  detail::DataRecord& held() const { return detail::held(record_, "WriteGuard"); }

  std::shared_ptr<detail::DataRecord> record_;
  ArrayView<T, N> view_;
};

/// A scattered input that is the size of the call's batch already, and is taken from its start while the batch selects
/// the rows of the others: `f(x, sr::minibatch(noise), {.batch = indices})`.
template <Element T, std::size_t N>
struct Minibatch {
  Data<T, N> data;
};
template <Element T, std::size_t N>
Minibatch<T, N> minibatch(const Data<T, N>& data) {
  return {data};
}

}  // namespace syncrun
