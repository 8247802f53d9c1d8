#pragma once

// Data: an array in shared memory that every process of the session has mapped. Session::data makes it. For the master
// only.

#include <concepts>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

#include "syncrun/array.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

template <Element T, std::size_t N>
class WriteGuard;

/// An array of N dimensions in shared memory. The element type and the number of dimensions are fixed. The shape can
/// change. A Data can also be a mapped file (Session::map_npy, Session::map_raw). Such a Data is read-only: members that
/// change a Data throw Error (usage).
///
/// A Data is a handle: copies refer to the same array. When the last copy of the handle is destroyed, the memory is
/// freed. All members throw Error (usage) if the session is closed or if the handle was moved from. Workers read the
/// array as Scattered or Broadcast. Unlike a Shared, a Data has no lasting copy on the workers.
template <Element T, std::size_t N>
class Data {
  static_assert(N >= 1, "a single number is passed by value");

 public:
  explicit Data(std::shared_ptr<detail::DataRecord> record) noexcept : record_(std::move(record)) {}

  /// The extents: rows first.
  Shape<N> shape() const { return detail::to_shape<N>(detail::extents_of(held())); }
  /// The first extent.
  std::int64_t rows() const { return shape()[0]; }
  /// The number of elements.
  std::int64_t size() const { return shape().elements(); }
  /// The rows that the ranks of a node can read: those of the node's file if each node has its own (Session::map_npy), its
  /// part of a batch of Draft::push_here(), and else all rows. Throws Error (usage) if there is no such node.
  Slice rows_of_node(int node) const { return detail::rows_of_node(held(), node); }
  /// The name of the array in error messages. Can be empty.
  const std::string& name() const { return detail::name_of(held()); }
  /// The size of the array's memory in bytes, including the part that is not in use.
  std::size_t capacity_bytes() const { return detail::capacity_bytes_of(held()); }

  /// The elements, read-only. The view is valid until the next call of set(), resize() or free().
  ArrayView<const T, N> view() const { return detail::array_of(held()).template view<const T, N>(); }
  /// The same elements as a span, in row-major order.
  std::span<const T> span() const { return view().span(); }
  /// at() reads one element, and slice() returns a view of some rows. Both throw Error (usage) if an index or the slice
  /// is out of range.
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

  /// Opens the array for writing; see WriteGuard. Throws Error (usage) if the array is already open for writing.
  [[nodiscard]] WriteGuard<T, N> write() { return WriteGuard<T, N>(record()); }

  /// Stores new values with a new shape. Waits for calls in flight that read the array. Throws Error (usage) if the
  /// number of values does not match the shape, and Error (system) if there is not enough memory. The message says how
  /// much is needed and how much is available.
  template <detail::ValuesOf<T> R>
  void set(const R& values, const Shape<N>& shape, Allocation allocation = {}) {
    detail::check_count(detail::count_of(values), shape.extents());
    detail::set_data(held(), shape.extents(), std::ranges::data(values), allocation.oversize);
  }
  /// Stores new values and keeps the shape. If the array has one dimension, its length becomes the number of values.
  template <detail::ValuesOf<T> R>
  void set(const R& values) {
    if constexpr (N == 1) set(values, Shape<1>(std::ranges::size(values)));
    else set(values, shape());
  }

  /// Replaces the values of whole rows, starting at row `first_row`. The number of rows follows from the number of
  /// values. Throws Error (usage) if the values do not fill whole rows, or if the array does not have these rows.
  template <detail::ValuesOf<T> R>
  void set_rows(std::int64_t first_row, const R& values) {
    detail::set_rows_of_data(held(), first_row, detail::count_of(values), std::ranges::data(values));
  }
  /// Stores one value in all elements.
  void fill(T value) {
    const auto open = write();
    std::uninitialized_fill(open.begin(), open.end(),
                            value);  // not std::fill, to avoid including <algorithm>
  }

  /// Changes the shape. Elements keep their positions in memory (row-major order). New elements are zero. The memory
  /// grows if necessary. Only free() makes it smaller. Throws the same errors as set().
  void resize(const Shape<N>& shape, Allocation allocation = {}) {
    detail::resize_data(held(), shape.extents(), allocation.oversize);
  }
  /// Like resize(), but changes only the number of rows.
  void resize_rows(std::int64_t rows, Allocation allocation = {}) {
    Shape<N> shape = this->shape();
    shape[0] = rows;
    resize(shape, allocation);
  }

  /// Frees the memory now. The array then has zero rows.
  void free() { detail::free_data(held()); }

 private:
  friend struct detail::HandleAccess;
  const std::shared_ptr<detail::DataRecord>& record() const {
    held();
    return record_;
  }
  detail::DataRecord& held() const { return detail::held(record_, "Data"); }

  std::shared_ptr<detail::DataRecord> record_;
};

/// Permission to write to a Data, for the lifetime of this object. The constructor waits for calls in flight that read
/// the Data. While the Data is open for writing, a call that uses it is an error. So the master never writes to a Data
/// while a worker reads it.
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

  /// The elements. The members below are those of this view. All members throw Error (usage) if the guard was moved
  /// from.
  const ArrayView<T, N>& view() const {
    held();
    return view_;
  }
  /// All elements, in row-major order.
  std::span<T> span() const { return view().span(); }
  /// The address of the first element.
  T* data() const { return view().data(); }
  /// The extents: rows first.
  const Shape<N>& shape() const { return view().shape(); }
  /// The first extent.
  std::int64_t rows() const { return view().rows(); }
  T* begin() const { return view().begin(); }
  T* end() const { return view().end(); }
  /// Row `row`: an element if the array has one dimension, else a view of N-1 dimensions.
  decltype(auto) operator[](std::int64_t row) const { return view()[row]; }
  /// The element at these indices, one per dimension. Does not check their range.
  template <std::integral... Index>
  T& operator()(Index... index) const {
    return view()(index...);
  }
  /// A view of some of the rows. Throws Error (usage) if the slice is out of range.
  ArrayView<T, N> slice(Slice rows) const {
    detail::check_rows(held(), rows);
    return view_.slice(rows.begin, rows.end);
  }

 private:
  detail::DataRecord& held() const { return detail::held(record_, "WriteGuard"); }

  std::shared_ptr<detail::DataRecord> record_;
  ArrayView<T, N> view_;
};

/// A scattered input to which CallOptions::batch is not applied. It has one row for each row that `batch` selects from
/// the other scattered inputs. Row i of this input belongs to the i-th selected row of the other inputs: `f(x,
/// sr::minibatch(noise), {.batch = indices})`.
template <Element T, std::size_t N>
struct Minibatch {
  Data<T, N> data;  ///< The array.
};
/// Makes a Minibatch of an array.
template <Element T, std::size_t N>
Minibatch<T, N> minibatch(const Data<T, N>& data) {
  return {data};
}

}  // namespace syncrun
