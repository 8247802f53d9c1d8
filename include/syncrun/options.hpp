#pragma once

// Options of a session and of one call, as aggregates with designated initializers.

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/worker.hpp"

namespace syncrun {

/// What becomes of a session when one of its workers dies.
enum class OnWorkerLost : std::uint8_t {
  end,      ///< The session is over.
  respawn,  ///< A new worker takes the rank. The calls in flight fail all the same; then the session goes on.
};

/// Options of a session. What `syncrun`'s command line, or a SYNCRUN_ variable, says wins over them: whoever starts the
/// program has the last word. What neither says is the default: all visible GPUs, or one CPU worker per core where there
/// are none.
struct SessionOptions {
  /// Devices by rank: "cpu0,cpu1". Empty: as `processes` says.
  std::string devices{};
  /// "N" workers, "cpu" (one per core), "gpu" or "auto". Empty: "auto".
  std::string processes{};
  /// Deadline of a call; 0 turns it off. Left out: 10 minutes.
  std::optional<std::chrono::milliseconds> timeout{};
  /// Deadline for all workers to be ready; 0 turns it off. Left out: 60 s.
  std::optional<std::chrono::milliseconds> start_timeout{};
  /// How long workers may take to end by themselves before they are killed.
  std::chrono::milliseconds grace{5000};
  /// Whether a lost worker ends the session. See docs/failures.md for what a new worker has and what it lacks.
  OnWorkerLost on_worker_lost = OnWorkerLost::end;
  /// How many workers may be replaced in a session, at most; the next loss ends it.
  int max_respawns = 10;
  /// Seed of the workers' random numbers.
  std::uint64_t seed = 0;
  /// Folder for one file of output per worker, made where it is missing; empty: none.
  std::string log_dir{};
  /// File for a table of where the time of calls went, written when the session ends; "-": standard error; empty: none.
  /// See Session::profile.
  std::string profile{};
  /// File for a trace of all calls on all ranks, for Perfetto or chrome://tracing; empty: none.
  std::string trace{};
  /// Left out: LogLevel::warning.
  std::optional<LogLevel> log_level{};
};

/// Rows [begin, end).
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

template <class R>
concept IndexRange = std::ranges::sized_range<R> && std::integral<std::ranges::range_value_t<R>> &&
                     !std::same_as<std::ranges::range_value_t<R>, bool>;

/// Which rows: all, the first so many, a slice, or a list of indices (repeats allowed; any range of integers). Refers to the caller's
/// range, which must live until the call was made (not until its result is there).
class Rows {
 public:
  enum class Kind : std::uint8_t { all, slice, list };

  Rows() = default;
  Rows(Slice slice) noexcept : kind_(Kind::slice), slice_(slice) {}  // NOLINT(google-explicit-constructor)
  /// The first `count` rows.
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  Rows(I count) noexcept  // NOLINT(google-explicit-constructor)
      : kind_(Kind::slice), slice_{0, widen(count)}, beyond_(beyond(count)) {}
  template <IndexRange R>
  Rows(const R& indices) noexcept  // NOLINT(google-explicit-constructor): written as {.batch = shuffled}
      : kind_(Kind::list),
        slice_{0, static_cast<std::int64_t>(std::ranges::size(indices))},
        range_(&indices),
        copy_([](const void* range, std::int64_t* to) {
          for (const auto index : *static_cast<const R*>(range)) *to++ = widen(index);
        }),
        text_of_([](const void* range, std::int64_t position) {
          for (const auto index : *static_cast<const R*>(range)) {
            if (position-- == 0) return text_of(index);
          }
          return std::string();
        }) {}

  Kind kind() const noexcept { return kind_; }
  Slice slice() const noexcept { return slice_; }
  /// Rows selected; of Kind::all, 0.
  std::int64_t count() const noexcept {
    std::int64_t count = 0;  // a slice that makes no sense is refused later, by its own ends
    return __builtin_sub_overflow(slice_.end, slice_.begin, &count) ? 0 : count;
  }
  /// Writes count() indices. Kind::list only.
  void copy_to(std::int64_t* to) const { copy_(range_, to); }
  /// For messages: an index as the caller wrote it, which may be more than an int64 can be. Kind::list only.
  std::string text_at(std::int64_t position) const { return text_of_(range_, position); }
  /// For messages: the end of slice().
  std::string text_of_end() const { return beyond_ != 0 ? std::to_string(beyond_) : std::to_string(slice_.end); }

 private:
  template <std::integral I>
  static constexpr std::int64_t widen(I index) noexcept {
    return std::in_range<std::int64_t>(index) ? static_cast<std::int64_t>(index) : -1;  // -1 is refused by the check
  }
  /// The number itself if no int64 can be it, else 0.
  template <std::integral I>
  static constexpr std::uint64_t beyond(I number) noexcept {
    return std::in_range<std::int64_t>(number) ? 0 : static_cast<std::uint64_t>(number);
  }
  template <std::integral I>
  static std::string text_of(I number) {
    return std::in_range<std::int64_t>(number) ? std::to_string(static_cast<std::int64_t>(number))
                                               : std::to_string(static_cast<std::uint64_t>(number));
  }
  Kind kind_ = Kind::all;
  Slice slice_{};
  const void* range_ = nullptr;
  void (*copy_)(const void* range, std::int64_t* to) = nullptr;
  std::string (*text_of_)(const void* range, std::int64_t position) = nullptr;
  std::uint64_t beyond_ = 0;  // the number of rows, where that is more than an int64 can be
};

/// Which rows of the workers' own copies: the same for all, or one selection per rank.
class LocalRows {
 public:
  LocalRows() = default;
  LocalRows(Slice slice) noexcept : all_(slice) {}  // NOLINT(google-explicit-constructor)
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  LocalRows(I count) noexcept : all_(count) {}  // NOLINT(google-explicit-constructor)
  template <IndexRange R>
  LocalRows(const R& indices) noexcept : all_(indices) {}  // NOLINT(google-explicit-constructor)
  /// One per rank: a range of ranges of integers, or of slices.
  template <std::ranges::sized_range R>
    requires std::same_as<std::ranges::range_value_t<R>, Slice> ||
             (IndexRange<std::ranges::range_value_t<R>> &&
              std::is_lvalue_reference_v<std::ranges::range_reference_t<const R>>)  // lists must outlive this
  LocalRows(const R& by_rank) {  // NOLINT(google-explicit-constructor)
    is_per_rank_ = true;
    by_rank_.reserve(detail::count_of(by_rank));
    for (const auto& rows : by_rank) by_rank_.emplace_back(rows);
  }

  bool is_given() const noexcept { return is_per_rank_ || all_.kind() != Rows::Kind::all; }
  bool is_per_rank() const noexcept { return is_per_rank_; }
  std::size_t ranks() const noexcept { return by_rank_.size(); }
  const Rows& of_rank(int rank) const noexcept {
    return is_per_rank_ ? by_rank_[static_cast<std::size_t>(rank)] : all_;
  }

 private:
  Rows all_;
  bool is_per_rank_ = false;
  std::vector<Rows> by_rank_;
};

/// Which way a collective on shared variables goes.
enum class Route : std::uint8_t {
  device,  ///< Between the devices: through NCCL on GPUs, in shared memory on CPU devices.
  host,    ///< Through shared memory, combined by the CPUs in rank order: also what NCCL has no arithmetic for.
};

/// Options of a collective on shared variables, passed last: `w.all_reduce(sr::Reduction::sum, {.route = sr::Route::host})`.
struct CollectiveOptions {
  Route route = Route::device;
};

/// Options of a scatter, passed last.
struct ScatterOptions {
  /// Rows to scatter; left out: all of them.
  Rows batch{};
};

/// How much memory a Data takes where it needs new one.
struct Allocation {
  /// Room for this many times the elements, so that growing further takes no new memory; at least 1.
  double oversize = 1;
};

/// Options of one call, passed last: `f(x, y, {.batch = shuffled, .slices = 4})`.
struct CallOptions {
  /// Rows of the scattered inputs to compute on; left out: all of them.
  Rows batch{};
  /// Rows of each worker's own copy for Sliced parameters; left out: all of them.
  LocalRows batch_s{};
  /// Sequential passes each worker makes over its rows, accumulating results: less memory, the same answer.
  std::int64_t slices = 1;
  /// Deadline of this call; 0 turns it off. Left out: the session's. It covers the time that the master spends in waits
  /// while the call is the oldest unfinished one on each of its ranks: neither the calls before it nor the master's own work.
  std::optional<std::chrono::milliseconds> timeout{};
};

}  // namespace syncrun
