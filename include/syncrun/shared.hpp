#pragma once

// Shared: a shared variable, that is, an array with a separate copy on every worker. Session::shared makes it. For the
// master only.

#include <string>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/options.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

/// A variable with one copy per worker, in the memory of the worker's device. Use a variable for weights, for
/// gradients, or for a data set that is scattered to the devices. The shapes of the copies may differ between ranks.
/// The copies of a new variable have zero rows. A body receives its own rank's copy as Local, Sliced or Update. A
/// Shared is a handle: if you copy the handle, both handles refer to the same variable.
///
/// Members that move values wait until the ranks involved have moved them, except get_async() and copy(), which return
/// at once. Each of these ranks first finishes the calls that were sent to it earlier. Members that write also wait for
/// all calls in flight that use the variable. Members throw Error: usage for bad arguments, a closed session, or a copy
/// that they read and that was lost with its worker (OnWorkerLost::respawn); system if there is not enough memory. A usage
/// error comes before any worker does anything. Session has collectives on
/// several variables at once.
template <Element T, std::size_t N>
class Shared {
  static_assert(N >= 1, "a single number is passed by value");

 public:
  explicit Shared(std::shared_ptr<detail::VariableRecord> record) noexcept : record_(std::move(record)) {}

  /// Copies the same values to every rank.
  template <detail::ValuesOf<T> R>
  void broadcast(const R& values, const Shape<N>& shape) {
    detail::broadcast_values(std::array{delivery_of(values, shape)});
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void broadcast(const R& values) {
    broadcast(values, Shape<1>(std::ranges::size(values)));
  }
  /// Copies the values of a Data to every rank. Workers copy directly from the memory of the Data.
  void broadcast(const Data<T, N>& data) { detail::broadcast_values(std::array{delivery_of(data)}); }
  /// Copies the values and the shape of rank `root`'s copy to every rank.
  void broadcast(int root, const CollectiveOptions& options = {}) {
    detail::broadcast_copies({&record(), 1}, root, options);
  }

  /// Divides the rows among the ranks, in rank order: as evenly as possible, or by the weights of Session::set_weights.
  /// `options.batch` selects the rows to scatter. Later changes of the weights move no rows. If the variable is the
  /// state of a sharded train step, the shares are equal whatever the weights are.
  template <detail::ValuesOf<T> R>
  void scatter(const R& values, const Shape<N>& shape, const ScatterOptions& options = {}) {
    detail::scatter_values(std::array{delivery_of(values, shape)}, options);
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void scatter(const R& values, const ScatterOptions& options = {}) {
    scatter(values, Shape<1>(std::ranges::size(values)), options);
  }
  /// Divides the rows of a Data in the same way. Workers copy directly from the memory of the Data, unless
  /// `options.batch` is a list of rows.
  void scatter(const Data<T, N>& data, const ScatterOptions& options = {}) {
    detail::scatter_values(std::array{delivery_of(data)}, options);
  }

  /// Returns all copies, concatenated along the rows in rank order. The copies may have different numbers of rows.
  [[nodiscard]] Array<T, N> gather() const {
    Array<T, N> all;
    detail::gather_to({&record(), 1}, detail::Gathered::rows, std::array{detail::maker_of(all)});
    return all;
  }
  /// Returns all copies, stacked: element [rank] is the copy of that rank. The copies must have the same shape on all
  /// ranks.
  [[nodiscard]] Array<T, N + 1> gather_stacked() const
    requires(N < kMaxDimensions)
  {
    Array<T, N + 1> all;
    detail::gather_to({&record(), 1}, detail::Gathered::stacked, std::array{detail::maker_of(all)});
    return all;
  }
  /// Concatenates all copies along the rows, in rank order. The result becomes every rank's new copy. The copies may
  /// have different numbers of rows.
  void all_gather(const CollectiveOptions& options = {}) { detail::all_gather_copies({&record(), 1}, options); }

  /// Reduces the copies element by element, in rank order. Every rank gets the result. Here, `avg` is the mean of the
  /// copies with equal weights. (In Comm::avg, the weight of a rank is its number of rows.) For this member and the
  /// reductions below, the copies must have the same shape on all ranks.
  void all_reduce(Reduction reduction, const CollectiveOptions& options = {}) {
    detail::all_reduce_copies({&record(), 1}, reduction, options);
  }
  /// Reduces like all_reduce(), but only the copy of rank `root` gets the result. Afterwards, the copies of the other
  /// ranks are undefined.
  void reduce(Reduction reduction, int root, const CollectiveOptions& options = {}) {
    detail::reduce_copies({&record(), 1}, reduction, root, options);
  }
  /// Reduces like all_reduce(), but returns the result to the master. The copies do not change.
  [[nodiscard]] Array<T, N> reduce(Reduction reduction, const CollectiveOptions& options = {}) const {
    Array<T, N> result;
    detail::reduce_to_master({&record(), 1}, reduction, options, std::array{detail::maker_of(result)});
    return result;
  }
  /// Reduces like all_reduce(), and divides the rows of the result among the ranks as evenly as possible, in rank
  /// order. Each rank's copy becomes that rank's share. The weights of Session::set_weights do not count.
  void reduce_scatter(Reduction reduction, const CollectiveOptions& options = {}) {
    detail::reduce_scatter_copies({&record(), 1}, reduction, options);
  }

  /// Returns one rank's copy.
  [[nodiscard]] Array<T, N> get(int rank) const {
    Array<T, N> copy;
    detail::get_from_rank(held(), rank, detail::maker_of(copy));
    return copy;
  }
  /// Starts to fetch one rank's copy, and returns. The rank reads its values when it has finished the calls that were
  /// sent to it earlier. Later calls do not change the result.
  [[nodiscard]] Future<Array<T, N>> get_async(int rank) const {
    auto fetched = detail::launch_get(record(), rank);
    return Future<Array<T, N>>(std::move(fetched.session), std::move(fetched.result), nullptr);
  }
  /// Starts to copy the values of rank `from` to rank `to`, and returns. Rank `to` makes the copy when the earlier
  /// calls that write the variable on rank `from` are done. Rank `from` goes on with other calls. A later call that
  /// writes the variable there waits for the copy. From a GPU to a CPU device, and to or from a GPU of another machine,
  /// the values go through the host, and this member waits for them. Throws Error (usage) if a rank does not exist, or
  /// if rank `from` has no values.
  void copy(int from, int to) { detail::copy_between_ranks(record(), from, to); }

  /// Replaces the copy of one rank. `options.batch` selects the rows of the values that the rank gets:
  /// `w.set(1, values, shape, {.batch = std::vector{4, 0}})`. Waits for the calls that use the variable.
  template <detail::ValuesOf<T> R>
  void set(int rank, const R& values, const Shape<N>& shape, const ScatterOptions& options = {}) {
    detail::set_on_rank(delivery_of(values, shape), rank, options);
  }
  template <detail::ValuesOf<T> R>
    requires(N == 1)
  void set(int rank, const R& values) {
    set(rank, values, Shape<1>(std::ranges::size(values)));
  }
  /// The same with the rows of a Data, which the worker copies from the memory of the Data.
  void set(int rank, const Data<T, N>& data, const ScatterOptions& options = {}) {
    detail::set_on_rank(delivery_of(data), rank, options);
  }

  /// The shape of the copy on a rank. The rows of copies can differ. Throws Error (usage) if there is no such rank.
  Shape<N> shape(int rank) const { return detail::to_shape<N>(detail::extents_of(held(), rank)); }
  /// The shapes of all copies, by rank.
  std::vector<Shape<N>> shapes() const {
    std::vector<Shape<N>> shapes;
    for (const auto& extents : detail::all_extents(held())) shapes.push_back(detail::to_shape<N>(extents));
    return shapes;
  }
  /// The numbers of rows of all copies, by rank.
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> lengths;
    for (const auto& extents : detail::all_extents(held())) lengths.push_back(extents[0]);
    return lengths;
  }
  /// The name of the variable in error messages.
  const std::string& name() const { return detail::name_of(held()); }

 private:
  friend struct detail::HandleAccess;
  const std::shared_ptr<detail::VariableRecord>& record() const {
    held();
    return record_;
  }
  detail::VariableRecord& held() const { return detail::held(record_, "Shared"); }
  template <class R>
  detail::Delivery delivery_of(const R& values, const Shape<N>& shape) const {
    detail::check_count(detail::count_of(values), shape.extents());
    return {.variable = record(), .values = std::ranges::data(values), .extents = detail::to_extents(shape)};
  }
  detail::Delivery delivery_of(const Data<T, N>& data) const {
    return {.variable = record(), .data = detail::record_of(data)};
  }

  std::shared_ptr<detail::VariableRecord> record_;
};

}  // namespace syncrun
