#pragma once

// CpuWorker and Comm: how a replicated function uses the worker that it runs on, and the other ranks.

#include <cstdint>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/any_worker.hpp"
#include "syncrun/array.hpp"
#include "syncrun/detail/elements.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

/// The CPU worker that runs the body. The body gets it as its parameter `CpuWorker&`. The reference is valid during the
/// call.
class SYNCRUN_EXPORT CpuWorker : public AnyWorker {
 public:
  explicit CpuWorker(detail::CommandLoop& core) noexcept : AnyWorker(core) {}
};

/// One rank's part of an array that is divided among the ranks: the elements [begin, begin + count).
struct Share {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

/// A collective that Comm::start_all_gather or Comm::start_reduce_scatter has started, in the body that started it.
class SYNCRUN_EXPORT StartedCollective {
 public:
  /// On a CUDA device: work that is put on the worker's stream from here on comes after the collective. The host does
  /// not wait.
  void join() const;

 private:
  friend class Comm;
  friend StartedCollective detail::start_gather_into_pages(Comm& comm, detail::CommSource part,
                                                           detail::CommTarget pages);
  StartedCollective(detail::CommCore& core, std::uint64_t number) noexcept : core_(&core), number_(number) {}

  detail::CommCore* core_;
  std::uint64_t number_;
};

/// The collectives of the workers. The body of a replicated function gets them as its parameter `Comm&`. All ranks must
/// call the same members in the same order, with the same types, operations, roots and lengths. Only the lengths of
/// `part` arguments may differ between ranks. Syncrun checks this. A mismatch throws Error (usage) on every rank.
/// `values`, `part` and `all` can be any contiguous range: a view, a vector or a span. On CUDA devices, they must be in
/// device memory.
///
/// On CPU devices, the members block. On CUDA devices, they run in the order of the worker's stream. If devices of both
/// kinds run the call, the values go through host memory. In such a call, the members on CUDA devices also wait for the
/// stream and for the other ranks, and Syncrun does not replay a replayable body. A function without a `Comm&` runs
/// only on ranks that have rows of the call. A function with a `Comm&` runs on every rank of the call. If one rank
/// fails, the call is abandoned: on the other ranks, members throw, and the master reports the failure of that one
/// rank.
class SYNCRUN_EXPORT Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  /// The rank of this worker among the ranks of the call, from 0, and their number (world_size).
  int rank() const noexcept;
  int world_size() const noexcept;

  /// Divides an array of `elements` elements among the ranks, and returns the share of this rank, or of rank `rank`.
  /// The shares are in rank order and as even as possible. If they cannot be equal, the first ranks have one element
  /// more. The weights of Session::set_weights do not apply. This member is not a collective: one rank can call it
  /// alone.
  Share share(std::int64_t elements) const noexcept { return share(elements, rank()); }
  Share share(std::int64_t elements, int rank) const noexcept;

  /// Returns when every rank has called barrier(). Does not wait for a CUDA device's stream.
  void barrier();

  /// Reduces element by element over the ranks, in rank order and in place. The result is the same on every rank, bit
  /// by bit. With `avg`, the weight of a rank is the number of rows that its body is working on (see
  /// CpuWorker::rows). The reduction is fastest on views of shared variables, because the ranks reduce them without a
  /// copy. Other memory is copied through buffers.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void all_reduce(R&& values, Reduction reduction) {
    detail::all_reduce_bytes(raw_, std::ranges::data(values), detail::count_of(values),
                             dtype_of<std::ranges::range_value_t<R>>, reduction);
  }
  /// Reduces one number in host memory, and returns the result on every rank. Blocks on CPU and on CUDA devices.
  template <Element T>
  [[nodiscard]] T all_reduce(T value, Reduction reduction) {
    detail::all_reduce_value(raw_, &value, dtype_of<T>, reduction);
    return value;
  }

  /// Calls all_reduce with Reduction::avg. If each rank passes the mean over its own rows, the result is the exact mean
  /// over all rows.
  template <std::ranges::contiguous_range R>
  void avg(R&& values) {
    all_reduce(std::forward<R>(values), Reduction::avg);
  }

  /// Reduces element by element as all_reduce does. The result replaces the values of rank `root`. Afterwards, the
  /// values of the other ranks are undefined.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void reduce(R&& values, Reduction reduction, int root) {
    detail::reduce_bytes(raw_, std::ranges::data(values), detail::count_of(values),
                         dtype_of<std::ranges::range_value_t<R>>, reduction, root);
  }

  /// Reduces element by element as all_reduce does, and writes this rank's share of the result to `part`.
  /// `share(values.size())` returns the position and the length of this share. `part` must have that length. `part`
  /// must not overlap `values`, unless `part` is exactly this rank's share of `values`. Afterwards, the rest of
  /// `values` is undefined. The member is fastest if the shares of all ranks are equal.
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void reduce_scatter(R&& values, Part&& part, Reduction reduction) {
    detail::reduce_scatter_bytes(raw_, std::ranges::data(values), detail::count_of(values), target_of(part),
                                 dtype_of<std::ranges::range_value_t<R>>, reduction);
  }

  /// Does what reduce_scatter does, but on CUDA devices it only starts it. Work that the body puts on the worker's
  /// stream afterwards may run at the same time, until join() of the result. Until then, `values` and `part` must stay,
  /// and nothing else may use them. Other collectives come after it. What is not joined ends with the body. On CPU
  /// devices, it is complete on return.
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  [[nodiscard]] StartedCollective start_reduce_scatter(R&& values, Part&& part, Reduction reduction) {
    return {*raw_.core,
            detail::start_reduce_scatter_bytes(raw_, std::ranges::data(values), detail::count_of(values),
                                               target_of(part), dtype_of<std::ranges::range_value_t<R>>, reduction)};
  }

  /// Copies rank `root`'s values to every rank.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void broadcast(R&& values, int root) {
    detail::broadcast_elements(raw_, std::ranges::data(values), detail::count_of(values),
                               dtype_of<std::ranges::range_value_t<R>>, root);
  }

  /// Copies the parts of all ranks to `all` on every rank, concatenated in rank order. This member joins the parts that
  /// reduce_scatter makes. Each rank's `part` must have the length that share(all.size()) returns on that rank. So the
  /// parts have equal lengths if the size of `all` is a multiple of world_size(). `part` must not overlap `all`, unless
  /// `part` is exactly this rank's share of `all`. The member is fastest if the shares of all ranks are equal.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void all_gather(const Part& part, R&& all) {
    detail::all_gather_bytes(raw_, source_of(part), target_of(all), {});
  }
  /// Does the same for parts of any lengths. Element [r] of `lengths` is the length of rank r's part. Every rank must
  /// pass the same list. The member lengths() returns such a list.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void all_gather(const Part& part, R&& all, std::span<const std::int64_t> lengths) {
    detail::all_gather_bytes(raw_, source_of(part), target_of(all), {true, lengths});
  }

  /// Starts an all_gather of shares, as start_reduce_scatter starts a reduce_scatter.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  [[nodiscard]] StartedCollective start_all_gather(const Part& part, R&& all) {
    return {*raw_.core, detail::start_all_gather_bytes(raw_, source_of(part), target_of(all))};
  }

  /// Copies the parts of all ranks to `all` on rank `root`, concatenated in rank order. Parts may have any lengths. The
  /// other ranks do not use `all`, and may pass an empty span. Without `lengths`, the ranks first exchange the lengths
  /// of their parts. This exchange blocks on CPU and on CUDA devices. If `lengths` is passed, there is no exchange.
  /// Element [r] of `lengths` is the length of rank r's part, and every rank must pass the same list.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void gather(const Part& part, R&& all, int root) {
    detail::gather_bytes(raw_, source_of(part), target_of(all), root, {});
  }
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void gather(const Part& part, R&& all, int root, std::span<const std::int64_t> lengths) {
    detail::gather_bytes(raw_, source_of(part), target_of(all), root, {true, lengths});
  }

  /// The reverse of gather. Rank `root` divides its `all` in rank order. Each rank receives as many elements as its
  /// `part` has. `lengths` is the same list as for gather.
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void scatter(const R& all, Part&& part, int root) {
    detail::scatter_bytes(raw_, source_of(all), target_of(part), root, {});
  }
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void scatter(const R& all, Part&& part, int root, std::span<const std::int64_t> lengths) {
    detail::scatter_bytes(raw_, source_of(all), target_of(part), root, {true, lengths});
  }

  /// Returns the values that the ranks passed: element [r] is the `own` of rank r. Blocks on CPU and on CUDA devices.
  [[nodiscard]] std::vector<std::int64_t> lengths(std::int64_t own);

 protected:
  /// `weights` are the weights of the ranks in the current slice. They must outlive this object.
  Comm(detail::CommCore& core, const detail::RankWeights& weights) noexcept : raw_{&core, &weights} {}
  ~Comm() = default;

 private:
  template <class R>
  static detail::CommSource source_of(const R& range) noexcept {
    return {std::ranges::data(range), detail::count_of(range), sizeof(std::ranges::range_value_t<R>)};
  }
  template <class R>
  static detail::CommTarget target_of(R&& range) noexcept {
    return {std::ranges::data(range), detail::count_of(range)};
  }

  friend class CollectiveLabel;
  friend StartedCollective detail::start_gather_into_pages(Comm& comm, detail::CommSource part,
                                                           detail::CommTarget pages);

  detail::RawComm raw_;
};

/// In its lifetime, the collectives of a Comm have a label, which the ranks compare as they compare lengths and types. So
/// collectives of equal lengths in another order are an error that names both labels, on every rank:
///
///   const CollectiveLabel label(comm, "block 3");
///   comm.all_gather(part, all);
///
/// On CUDA devices, NCCL does not compare it. There, only members that go through the host do. A Comm has one label at a
/// time. Error messages show the last 59 characters.
class SYNCRUN_EXPORT CollectiveLabel {
 public:
  /// From here on, the collectives of `comm` have this label. Copies the text.
  CollectiveLabel(Comm& comm, std::string_view label);
  ~CollectiveLabel();
  CollectiveLabel(const CollectiveLabel&) = delete;
  CollectiveLabel& operator=(const CollectiveLabel&) = delete;

 private:
  detail::CommCore* core_;
};

}  // namespace syncrun
