#pragma once

// What a replicated function can ask of the worker it runs on, and of its peers.

#include <cstdint>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "syncrun/any_worker.hpp"
#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

namespace detail {
class CommCore;
struct RankWeights;

template <class A, class B>
concept SameElements = Element<std::ranges::range_value_t<A>> &&
                       std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;
}  // namespace detail

/// The CPU worker a body runs on: a parameter `CpuWorker&` of a replicated function. Valid during the call.
class SYNCRUN_EXPORT CpuWorker : public AnyWorker {
 public:
  explicit CpuWorker(detail::WorkerCore& core) noexcept : AnyWorker(core) {}
};

/// One rank's part of an array that is divided among the ranks: elements [begin, begin + count).
struct Share {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

/// Collectives among the workers: a parameter `Comm&` of a replicated function. Every member is called by all ranks,
/// in the same order, with equal lengths, types and operations (checked; a mismatch throws Error (usage) on every
/// rank). Values are any contiguous range: a view, a vector, a span; on CUDA devices of device memory. Blocking on CPU
/// devices; on CUDA devices in the order of the worker's stream. A function with a `Comm&` runs on every rank, also where
/// there are no rows for it.
/// If a peer fails, the call is abandoned: members throw, and the master reports the peer's failure.
class SYNCRUN_EXPORT Comm {
 public:
  /// The framework's own entry; `weights` are those of the slice at hand, for as long as this lives.
  Comm(detail::CommCore& core, const detail::RankWeights& weights) noexcept : core_(&core), weights_(&weights) {}
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const noexcept;
  int world_size() const noexcept;

  /// The part of `elements` elements that is this rank's, or that of `rank`: as even as possible, in rank order; the first
  /// ranks have one more where it does not come out even. Not a collective.
  Share share(std::int64_t elements) const noexcept { return share(elements, rank()); }
  Share share(std::int64_t elements, int rank) const noexcept;

  /// Returns when every rank has called it. Does not wait for a CUDA device's stream.
  void barrier();

  /// Reduces element by element over the ranks, in rank order; every rank gets the same bits. `avg` weights each rank
  /// by the rows of its current slice (see CpuWorker::rows). In place. Fastest on views of shared variables, which are
  /// reduced where they are; other memory is staged.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void all_reduce(R&& values, Reduction reduction) {
    all_reduce_bytes(std::ranges::data(values), detail::count_of(values), dtype_of<std::ranges::range_value_t<R>>,
                     reduction);
  }
  /// One number of the host's, reduced; the result on every rank. Blocking on every device.
  template <Element T>
  [[nodiscard]] T all_reduce(T value, Reduction reduction) {
    all_reduce_value(&value, dtype_of<T>, reduction);
    return value;
  }

  /// all_reduce with Reduction::avg: the exact mean over all rows, when each rank brings the mean over its own.
  template <std::ranges::contiguous_range R>
  void avg(R&& values) {
    all_reduce(std::forward<R>(values), Reduction::avg);
  }

  /// Reduces element by element as all_reduce does, to rank `root`, in place. What is left in the other ranks' values is
  /// undefined.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void reduce(R&& values, Reduction reduction, int root) {
    reduce_bytes(std::ranges::data(values), detail::count_of(values), dtype_of<std::ranges::range_value_t<R>>,
                 reduction, root);
  }

  /// Reduces element by element as all_reduce does, and leaves this rank's share of the result, share(values.size()), in
  /// `part`, which is of that length. `part` must not overlap `values`, unless it is exactly this rank's share of it. The
  /// rest of `values` is undefined afterwards. Fastest where the ranks' shares are equal.
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void reduce_scatter(R&& values, Part&& part, Reduction reduction) {
    reduce_scatter_bytes(std::ranges::data(values), detail::count_of(values), std::ranges::data(part),
                         detail::count_of(part), dtype_of<std::ranges::range_value_t<R>>, reduction);
  }

  /// Copies rank `root`'s values to every rank.
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  void broadcast(R&& values, int root) {
    broadcast_bytes(std::ranges::data(values), detail::count_of(values) * sizeof(std::ranges::range_value_t<R>), root);
  }

  /// Every rank's `part`, one after the other in rank order, to every rank: what reduce_scatter divides it joins. Parts are
  /// the ranks' shares of `all`: share(all.size()), hence of equal lengths where `all` holds world_size() times as many.
  /// `part` must not overlap `all`, unless it is exactly this rank's section of it. Fastest where the shares are equal.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void all_gather(const Part& part, R&& all) {
    all_gather_bytes(source_of(part), target_of(all), {});
  }
  /// The same of parts of any lengths, which every rank passes, by rank (see lengths()).
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void all_gather(const Part& part, R&& all, std::span<const std::int64_t> lengths) {
    all_gather_bytes(source_of(part), target_of(all), {true, lengths});
  }

  /// Every rank's `part`, of any length, one after the other in rank order, to rank `root`; the others' `all` is not
  /// looked at, and may be an empty span. Without `lengths` the ranks tell each other theirs first, which is blocking on
  /// every device; with them, by rank and the same on every rank, there is nothing to ask.
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void gather(const Part& part, R&& all, int root) {
    gather_bytes(source_of(part), target_of(all), root, {});
  }
  template <std::ranges::contiguous_range Part, std::ranges::contiguous_range R>
    requires detail::SameElements<Part, R>
  void gather(const Part& part, R&& all, int root, std::span<const std::int64_t> lengths) {
    gather_bytes(source_of(part), target_of(all), root, {true, lengths});
  }

  /// The reverse: rank `root`'s `all`, divided in rank order into parts as long as each rank's `part`.
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void scatter(const R& all, Part&& part, int root) {
    scatter_bytes(source_of(all), target_of(part), root, {});
  }
  template <std::ranges::contiguous_range R, std::ranges::contiguous_range Part>
    requires detail::SameElements<Part, R>
  void scatter(const R& all, Part&& part, int root, std::span<const std::int64_t> lengths) {
    scatter_bytes(source_of(all), target_of(part), root, {true, lengths});
  }

  /// What every rank calls this with, by rank. Blocking on every device.
  [[nodiscard]] std::vector<std::int64_t> lengths(std::int64_t own);

 private:
  void all_reduce_bytes(void* values, std::size_t elements, DType dtype, Reduction reduction);
  void all_reduce_value(void* value, DType dtype, Reduction reduction);
  void broadcast_bytes(void* values, std::size_t bytes, int root);
  void reduce_bytes(void* values, std::size_t elements, DType dtype, Reduction reduction, int root);
  void reduce_scatter_bytes(void* values, std::size_t elements, void* part, std::size_t part_elements, DType dtype,
                            Reduction reduction);

  struct Source {
    const void* data;
    std::size_t elements;
    std::size_t element_bytes;
  };
  struct Target {
    void* data;
    std::size_t elements;
  };
  struct Lengths {
    bool are_given = false;
    std::span<const std::int64_t> by_rank{};
  };
  template <class R>
  static Source source_of(const R& range) noexcept {
    return {std::ranges::data(range), static_cast<std::size_t>(std::ranges::size(range)),
            sizeof(std::ranges::range_value_t<R>)};
  }
  template <class R>
  static Target target_of(R&& range) noexcept {
    return {std::ranges::data(range), static_cast<std::size_t>(std::ranges::size(range))};
  }
  void all_gather_bytes(Source part, Target all, Lengths lengths);
  void gather_bytes(Source part, Target all, int root, Lengths lengths);
  void scatter_bytes(Source all, Target part, int root, Lengths lengths);
  detail::CommCore* core_;
  const detail::RankWeights* weights_;
};

}  // namespace syncrun
