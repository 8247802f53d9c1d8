#pragma once

// The options of a session and of a call. Each is an aggregate: set its members with designated initializers.

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

enum class OnWorkerLost : std::uint8_t;

/// Options of a session. The command line of `syncrun` and the SYNCRUN_ environment variables override these options.
/// So the person who starts the program has the last word. By default, there is one worker per visible GPU, or one CPU
/// worker per core if there is no GPU.
struct SessionOptions {
  /// The device of each rank, such as "cpu0,cpu1" or "cuda0,cpu0". A device can have names, by which Session::device
  /// finds it: "dev0=cuda0,dev1=cuda1". If a device has two names ("a=cuda0,b=cuda0"), it still has only one
  /// rank. A name must not begin with `cpu` or
  /// `cuda`. It must not contain spaces, `->`, `;`, `,` or `=`. Empty: `processes` selects the devices.
  std::string devices{};
  /// A number of workers ("4"), "cpu" (one per core), "gpu" (one per GPU) or "auto". Empty: "auto".
  std::string processes{};
  /// Deadline of a call. 0 turns it off. Left out: 10 minutes.
  std::optional<std::chrono::milliseconds> timeout{};
  /// Deadline for all workers to be ready. 0 turns it off. Left out: 60 s.
  std::optional<std::chrono::milliseconds> start_timeout{};
  /// How long workers may take to end by themselves before they are killed.
  std::chrono::milliseconds grace{5000};
  /// What happens when a worker dies. Left out: the session ends. With OnWorkerLost::respawn, a new worker replaces the
  /// dead one. docs/failures.md says which data of the dead worker Syncrun restores on the new one.
  OnWorkerLost on_worker_lost{};  // OnWorkerLost::end
  /// The number of workers that can be replaced in a session. If one more worker dies, the session ends.
  int max_respawns = 10;
  /// Seed of the workers' random numbers.
  std::uint64_t seed = 0;
  /// Folder for the output of the workers, one file per worker. Syncrun makes the folder if it does not exist. Empty:
  /// no files.
  std::string log_dir{};
  /// File for the profile, a table of the times that the phases of calls took. Syncrun writes it when the session ends.
  /// If the name ends in ".json", it writes JSON. "-": standard error. Empty: no profile. See Session::profile.
  std::string profile{};
  /// File for a trace of all calls on all ranks, for Perfetto or chrome://tracing. Empty: no trace.
  std::string trace{};
  /// The place for metrics in the text format of Prometheus: a file that Syncrun replaces every second, `unix:PATH` for
  /// a socket, or a port of the loopback interface ("9090"). "-": standard error, when the session ends. Empty: no
  /// metrics. See Session::metrics.
  std::string metrics{};
  /// Left out: LogLevel::warning.
  std::optional<LogLevel> log_level{};
};

/// What happens to a session when one of its workers dies.
enum class OnWorkerLost : std::uint8_t {
  end,      ///< The session is over.
  respawn,  ///< A new worker replaces the dead one. The calls in flight fail. The session goes on.
};

/// Rows [begin, end).
struct Slice {
  std::int64_t begin = 0;  ///< The first row.
  std::int64_t end = 0;    ///< One past the last row.
  friend bool operator==(const Slice&, const Slice&) = default;
};

/// A list of row indices: a range of integers whose size is known.
template <class R>
concept IndexRange = std::ranges::sized_range<R> && std::integral<std::ranges::range_value_t<R>> &&
                     !std::same_as<std::ranges::range_value_t<R>, bool>;

/// A selection of rows: all rows, the first `count` rows, a slice, or a list of indices. A list is any range of
/// integers, and may repeat indices. For a list, a Rows object keeps a reference to the caller's range and makes no
/// copy. The range must live until the statement with the call has ended. For an async call, it need not live until the
/// result arrives.
class Rows {
 public:
  /// What is selected: `all` rows, a `slice`, or the rows of a `list` of indices.
  enum class Kind : std::uint8_t { all, slice, list };

  Rows() = default;
  /// The rows of a slice.
  Rows(Slice slice) noexcept : kind_(Kind::slice), slice_(slice) {}  // NOLINT(google-explicit-constructor)
  /// The first `count` rows.
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  Rows(I count) noexcept  // NOLINT(google-explicit-constructor)
      : kind_(Kind::slice), slice_{0, widen(count)}, beyond_(beyond(count)) {}
  /// The rows with these indices, in this order.
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

  /// What is selected.
  Kind kind() const noexcept { return kind_; }
  /// The slice. For a list, the positions in it: [0, count()). Zero for Kind::all.
  Slice slice() const noexcept { return slice_; }
  /// The number of selected rows. 0 for Kind::all.
  std::int64_t count() const noexcept {
    // If end - begin overflows, the result is 0. A later check of begin and end rejects such a slice.
    std::int64_t count = 0;
    return __builtin_sub_overflow(slice_.end, slice_.begin, &count) ? 0 : count;
  }
  /// Writes count() indices to `to`. For Kind::list only.
  void copy_to(std::int64_t* to) const { copy_(range_, to); }
  /// For error messages: the index at this position of the list, as the caller wrote it. The index can be too large for
  /// an int64. For Kind::list only.
  std::string text_at(std::int64_t position) const { return text_of_(range_, position); }
  /// For error messages: the end of slice(), as the caller wrote it.
  std::string text_of_end() const { return beyond_ != 0 ? std::to_string(beyond_) : std::to_string(slice_.end); }

 private:
  template <std::integral I>
  static constexpr std::int64_t widen(I index) noexcept {
    return std::in_range<std::int64_t>(index) ? static_cast<std::int64_t>(index) : -1;  // a later check rejects -1
  }
  /// The number itself if it is too large for an int64, else 0.
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
  std::uint64_t beyond_ = 0;  // the caller's number of rows if it is too large for an int64, else 0
};

/// A selection of rows of a shared variable's copies on the workers: either one selection for all ranks, or one
/// selection per rank.
class LocalRows {
 public:
  LocalRows() = default;
  /// One selection for all ranks, as in Rows: a slice, the first `count` rows, or a list of indices.
  LocalRows(Slice slice) noexcept : all_(slice) {}  // NOLINT(google-explicit-constructor)
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  LocalRows(I count) noexcept : all_(count) {}  // NOLINT(google-explicit-constructor)
  template <IndexRange R>
  LocalRows(const R& indices) noexcept : all_(indices) {}  // NOLINT(google-explicit-constructor)
  /// One selection per rank: a range of ranges of integers, or a range of slices.
  template <std::ranges::sized_range R>
    requires std::same_as<std::ranges::range_value_t<R>, Slice> ||
             (IndexRange<std::ranges::range_value_t<R>> &&
              std::is_lvalue_reference_v<
                  std::ranges::range_reference_t<const R>>)  // the lists must outlive this object
  LocalRows(const R& by_rank) {                              // NOLINT(google-explicit-constructor)
    is_per_rank_ = true;
    by_rank_.reserve(detail::count_of(by_rank));
    for (const auto& rows : by_rank) by_rank_.emplace_back(rows);
  }

  /// Whether anything is selected. Otherwise, the selection is all rows.
  bool is_given() const noexcept { return is_per_rank_ || all_.kind() != Rows::Kind::all; }
  /// Whether there is one selection per rank.
  bool is_per_rank() const noexcept { return is_per_rank_; }
  /// The number of selections, if there is one per rank. Otherwise 0.
  std::size_t ranks() const noexcept { return by_rank_.size(); }
  /// The selection of a rank, from 0.
  const Rows& of_rank(int rank) const noexcept {
    return is_per_rank_ ? by_rank_[static_cast<std::size_t>(rank)] : all_;
  }

 private:
  Rows all_;
  bool is_per_rank_ = false;
  std::vector<Rows> by_rank_;
};

/// The number of rows of a call that has no array whose rows are divided, such as a simulation. Any integer converts to
/// a RowCount. A default-constructed RowCount means that no number is given.
class RowCount {
 public:
  RowCount() = default;
  /// This number of rows.
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  RowCount(I count) noexcept : rows_(count) {}  // NOLINT(google-explicit-constructor): written as {.rows = 1000}

  /// Whether a number is given.
  bool is_given() const noexcept { return rows_.kind() != Rows::Kind::all; }
  /// The number of rows. -1 if the caller's number is too large for an int64. 0 if none was given.
  std::int64_t count() const noexcept { return rows_.slice().end; }
  /// For error messages: the number as the caller wrote it.
  std::string text() const { return rows_.text_of_end(); }

 private:
  Rows rows_;  // the first `count` rows
};

/// Options of one call, passed as its last argument: `f(x, y, {.batch = shuffled, .slices = 4})`.
struct CallOptions {
  /// The rows of the scattered inputs that the call uses. Left out: all rows.
  Rows batch{};
  /// For Sliced parameters: the rows of each worker's own copy that the call uses. Left out: all rows.
  LocalRows batch_s{};
  /// The number of rows of a call without Scattered and Sliced arguments, at least 1. The ranks divide the rows 0 to
  /// rows - 1 among themselves as they divide the rows of a scattered input. The body asks its worker which rows it
  /// computes (AnyWorker::rows, AnyWorker::first_row). Left out: the body runs once on each rank, and each rank counts
  /// as one row. A call with a Scattered or Sliced argument has the rows of that argument, and refuses this option.
  RowCount rows{};
  /// The number of slices into which each worker divides its rows. The worker runs the body once per slice, one slice
  /// after the other, and combines the results. More slices need less memory. The result is the same, except that a
  /// Stack has one row for each slice. From 1 to the number of rows of the call, and at most 2147483647.
  std::int64_t slices = 1;
  /// Deadline of this call. 0 turns it off. Left out: the session's deadline. The clock runs only while three
  /// conditions hold: the master waits, this call is the oldest unfinished call on each of its ranks, and other ranks
  /// are done with the calls on which this call depends. So the time of earlier calls and of the master's own work does
  /// not count.
  std::optional<std::chrono::milliseconds> timeout{};
};

/// Options of Session::verify.
struct VerifyOptions {
  /// The largest relative difference that counts as equal. That of an array is the norm of the difference, divided by the
  /// norm of the values on one rank. Sums of float32 in another order differ by about 1e-6. Allow more where rounding is
  /// coarser (bfloat16, and TF32 in convolutions on GPUs), and where values nearly cancel, as a gradient at a minimum.
  double tolerance = 1e-4;
};

/// The route of a collective on shared variables.
enum class Route : std::uint8_t {
  /// Between the devices: through NCCL on GPUs, and in shared memory on CPU devices. In a session with both kinds of
  /// devices, through shared memory.
  device,
  /// Through shared memory. CPUs combine the copies in rank order. This route also works for element types that NCCL
  /// cannot reduce.
  host,
};

/// Options of a collective on shared variables, passed as its last argument:
/// `w.all_reduce(sr::Reduction::sum, {.route = sr::Route::host})`.
struct CollectiveOptions {
  Route route = Route::device;  ///< Through which memory the values go.
};

/// Options of Shared::scatter and Shared::set, passed as the last argument.
struct ScatterOptions {
  /// The rows to move. Left out: all rows.
  Rows batch{};
};

/// How much memory a Data allocates when it needs more than it has.
struct Allocation {
  /// A factor of at least 1: the new memory has room for `oversize` times the number of elements. If the array later
  /// grows but still fits in this memory, the Data allocates nothing.
  double oversize = 1;
};

}  // namespace syncrun
