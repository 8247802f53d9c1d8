#pragma once

// Shared variables: an array with a copy of its own on every worker. Made by Session::shared. Master only.

#include <string>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

namespace detail {
using Extents = std::array<std::int64_t, kMaxDimensions>;

void broadcast_values(VariableRecord& variable, std::span<const std::int64_t> extents, const void* values);
void broadcast_from(VariableRecord& variable, int root);
void scatter_values(VariableRecord& variable, std::span<const std::int64_t> extents, const void* values);
void scatter_data(VariableRecord& variable, const DataRecord& data);
void all_reduce_variable(VariableRecord& variable, Reduction reduction);
void set_on_rank(VariableRecord& variable, int rank, std::span<const std::int64_t> extents, const void* values);
Extents extents_of(const VariableRecord& variable, int rank);
Extents gathered_extents(const VariableRecord& variable);
void get_from_rank(VariableRecord& variable, int rank, void* values);
void gather_to(VariableRecord& variable, void* values);
const std::string& name_of(const VariableRecord& variable) noexcept;

template <std::size_t N>
Shape<N> to_shape(const Extents& extents) noexcept {
  Shape<N> shape;
  for (std::size_t i = 0; i < N; ++i) shape[i] = extents[i];
  return shape;
}
}  // namespace detail

/// A variable with one copy per worker, on its device: weights, gradients, or a data set that was scattered to the
/// devices. Shapes may differ between ranks; a new variable has zero rows everywhere. Functions see their rank's copy
/// as Local, Sliced or Update. A handle: copies refer to the same variable. All members block until done, wait for
/// calls in flight first, and throw Error: usage for bad arguments or a closed session, system if memory runs out.
template <Element T, std::size_t N>
class Shared {
  static_assert(N >= 1, "a single number is passed by value");

 public:
  explicit Shared(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}

  /// Gives every rank the same values.
  template <detail::ValuesOf<T> R>
  void broadcast(const R& values, const Shape<N>& shape) {
    detail::check_count(std::ranges::size(values), shape.extents());
    detail::broadcast_values(*record_, shape.extents(), std::ranges::data(values));
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void broadcast(const R& values) {
    broadcast(values, Shape<1>(std::ranges::size(values)));
  }
  /// Gives every rank the values, and the shape, of rank `root`'s copy.
  void broadcast(int root) { detail::broadcast_from(*record_, root); }

  /// Splits rows among the ranks as evenly as possible, in rank order.
  template <detail::ValuesOf<T> R>
  void scatter(const R& values, const Shape<N>& shape) {
    detail::check_count(std::ranges::size(values), shape.extents());
    detail::scatter_values(*record_, shape.extents(), std::ranges::data(values));
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void scatter(const R& values) {
    scatter(values, Shape<1>(std::ranges::size(values)));
  }
  /// The same from shared memory, without a copy in between.
  void scatter(const Data<T, N>& data) { detail::scatter_data(*record_, *data.record()); }

  /// All copies, concatenated along the rows in rank order; lengths may differ.
  [[nodiscard]] Array<T, N> gather() const {
    Array<T, N> all(detail::to_shape<N>(detail::gathered_extents(*record_)));
    detail::gather_to(*record_, all.data());
    return all;
  }

  /// Reduces the copies element by element, in rank order; every rank gets the result. `avg` is the plain mean of the
  /// copies (see Comm::avg for the row-weighted one). Shapes must be equal on all ranks.
  void all_reduce(Reduction reduction) { detail::all_reduce_variable(*record_, reduction); }

  /// One rank's copy.
  [[nodiscard]] Array<T, N> get(int rank) const {
    Array<T, N> copy(shape(rank));
    detail::get_from_rank(*record_, rank, copy.data());
    return copy;
  }
  template <detail::ValuesOf<T> R>
  void set(int rank, const R& values, const Shape<N>& shape) {
    detail::check_count(std::ranges::size(values), shape.extents());
    detail::set_on_rank(*record_, rank, shape.extents(), std::ranges::data(values));
  }

  Shape<N> shape(int rank) const { return detail::to_shape<N>(detail::extents_of(*record_, rank)); }
  const std::string& name() const noexcept { return detail::name_of(*record_); }

  /// The framework's own handle.
  const std::shared_ptr<detail::VariableRecord>& record() const noexcept { return record_; }

 private:
  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
