#pragma once

// Shared variables: an array with a copy of its own on every worker. Made by Session::shared. Master only.

#include <string>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/options.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

/// A variable with one copy per worker, on its device: weights, gradients, or a data set that was scattered to the
/// devices. Shapes may differ between ranks; a new variable has zero rows everywhere. Functions see their rank's copy
/// as Local, Sliced or Update. A handle: copies refer to the same variable. All members block until done, wait for
/// calls in flight first, and throw Error: usage for bad arguments or a closed session, before any worker has moved;
/// system if memory runs out. Session has the collectives of several variables at once.
template <Element T, std::size_t N>
class Shared {
  static_assert(N >= 1, "a single number is passed by value");

 public:
  explicit Shared(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}

  /// Gives every rank the same values.
  template <detail::ValuesOf<T> R>
  void broadcast(const R& values, const Shape<N>& shape) {
    detail::broadcast_values(std::array{delivery_of(values, shape)});
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void broadcast(const R& values) {
    broadcast(values, Shape<1>(std::ranges::size(values)));
  }
  /// The same from shared memory, without a copy in between.
  void broadcast(const Data<T, N>& data) { detail::broadcast_values(std::array{delivery_of(data)}); }
  /// Gives every rank the values, and the shape, of rank `root`'s copy.
  void broadcast(int root, const CollectiveOptions& options = {}) {
    detail::broadcast_copies({&record(), 1}, root, options);
  }

  /// Splits rows, or those that `options.batch` selects, among the ranks as evenly as possible, in rank order.
  template <detail::ValuesOf<T> R>
  void scatter(const R& values, const Shape<N>& shape, const ScatterOptions& options = {}) {
    detail::scatter_values(std::array{delivery_of(values, shape)}, options);
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void scatter(const R& values, const ScatterOptions& options = {}) {
    scatter(values, Shape<1>(std::ranges::size(values)), options);
  }
  /// The same from shared memory; without a copy in between, unless single rows are selected.
  void scatter(const Data<T, N>& data, const ScatterOptions& options = {}) {
    detail::scatter_values(std::array{delivery_of(data)}, options);
  }

  /// All copies, concatenated along the rows in rank order; lengths may differ.
  [[nodiscard]] Array<T, N> gather() const {
    Array<T, N> all(detail::to_shape<N>(detail::gathered_extents(held())));
    detail::gather_to({&record(), 1}, std::array<void*, 1>{all.data()});
    return all;
  }
  /// All copies, one above the other: element [rank] is that rank's copy. Shapes must be equal on all ranks.
  [[nodiscard]] Array<T, N + 1> gather_stacked() const
    requires(N < kMaxDimensions)
  {
    const Shape<N> shape = detail::to_shape<N>(detail::common_extents(held(), "gather_stacked"));
    Shape<N + 1> stacked;
    stacked[0] = static_cast<std::int64_t>(detail::all_extents(held()).size());
    for (std::size_t i = 0; i < N; ++i) stacked[i + 1] = shape[i];
    Array<T, N + 1> all(stacked);
    detail::gather_to({&record(), 1}, std::array<void*, 1>{all.data()});
    return all;
  }
  /// Gives every rank all copies, concatenated along the rows in rank order; lengths may differ.
  void all_gather(const CollectiveOptions& options = {}) { detail::all_gather_copies({&record(), 1}, options); }

  /// Reduces the copies element by element, in rank order; every rank gets the result. `avg` is the plain mean of the
  /// copies (see Comm::avg for the row-weighted one). Here and below, shapes must be equal on all ranks.
  void all_reduce(Reduction reduction, const CollectiveOptions& options = {}) {
    detail::all_reduce_copies({&record(), 1}, reduction, options);
  }
  /// The same to rank `root`, whose copy becomes the result. The other ranks' copies are undefined afterwards.
  void reduce(Reduction reduction, int root, const CollectiveOptions& options = {}) {
    detail::reduce_copies({&record(), 1}, reduction, root, options);
  }
  /// The same to the master; the copies stay as they are.
  [[nodiscard]] Array<T, N> reduce(Reduction reduction, const CollectiveOptions& options = {}) const {
    Array<T, N> result(detail::to_shape<N>(detail::common_extents(held(), "reduce")));
    detail::reduce_to_master({&record(), 1}, reduction, options, std::array<void*, 1>{result.data()});
    return result;
  }
  /// The same, scattered: each rank's copy becomes its share of the rows of the result, as even as possible.
  void reduce_scatter(Reduction reduction, const CollectiveOptions& options = {}) {
    detail::reduce_scatter_copies({&record(), 1}, reduction, options);
  }

  /// One rank's copy.
  [[nodiscard]] Array<T, N> get(int rank) const {
    Array<T, N> copy(shape(rank));
    detail::get_from_rank(held(), rank, copy.data());
    return copy;
  }
  template <detail::ValuesOf<T> R>
  void set(int rank, const R& values, const Shape<N>& shape) {
    detail::check_count(detail::count_of(values), shape.extents());
    detail::set_on_rank(held(), rank, shape.extents(), std::ranges::data(values));
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void set(int rank, const R& values) {
    set(rank, values, Shape<1>(std::ranges::size(values)));
  }

  Shape<N> shape(int rank) const { return detail::to_shape<N>(detail::extents_of(held(), rank)); }
  /// Of all copies, by rank.
  std::vector<Shape<N>> shapes() const {
    std::vector<Shape<N>> shapes;
    for (const auto& extents : detail::all_extents(held())) shapes.push_back(detail::to_shape<N>(extents));
    return shapes;
  }
  /// Rows of all copies, by rank.
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> lengths;
    for (const auto& extents : detail::all_extents(held())) lengths.push_back(extents[0]);
    return lengths;
  }
  const std::string& name() const { return detail::name_of(held()); }

  /// The framework's own handle.
  const std::shared_ptr<detail::VariableRecord>& record() const {
    held();
    return record_;
  }

 private:
  friend struct detail::HandleAccess;
  detail::VariableRecord& held() const { return detail::held(record_, "Shared"); }
  template <class R>
  detail::Delivery delivery_of(const R& values, const Shape<N>& shape) const {
    detail::check_count(detail::count_of(values), shape.extents());
    return {.variable = record(), .values = std::ranges::data(values), .extents = detail::to_extents(shape)};
  }
  detail::Delivery delivery_of(const Data<T, N>& data) const { return {.variable = record(), .data = data.record()}; }

  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
