#pragma once

// The interface of collectives, and the collectives among CPU workers over shared memory. Large values in the segment
// are not copied: each rank does its part on the arrays themselves. Small values, and values in private memory, go
// through a buffer of each rank.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "common/arrays/row_range.hpp"
#include "common/export_for_cuda.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"
#include "worker/comm/meetings.hpp"
#include "worker/comm/own_time.hpp"
#include "worker/process/attachment.hpp"
#include "worker/process/interruption.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::comm {

/// How the elements of an array are divided among the ranks, in rank order: evenly, as share_of divides them, or by
/// given lengths.
class Division {
 public:
  Division(std::size_t elements, int ranks, std::size_t element_bytes) noexcept
      : elements_(static_cast<std::int64_t>(elements)), ranks_(ranks), element_bytes_(element_bytes) {}
  /// `lengths` has the length of each rank's part, and must outlive this object.
  Division(std::span<const std::int64_t> lengths, std::size_t element_bytes) noexcept;

  SYNCRUN_EXPORT_FOR_CUDA arrays::RowRange of(int rank) const noexcept;
  std::int64_t elements() const noexcept { return elements_; }
  std::size_t element_bytes() const noexcept { return element_bytes_; }
  std::size_t begin_bytes(int rank) const noexcept { return static_cast<std::size_t>(of(rank).begin) * element_bytes_; }
  std::size_t bytes(int rank) const noexcept { return static_cast<std::size_t>(of(rank).count()) * element_bytes_; }
  std::size_t all_bytes() const noexcept { return static_cast<std::size_t>(elements_) * element_bytes_; }
  std::size_t largest_bytes() const noexcept;
  /// Whether all ranks have the same number of elements.
  SYNCRUN_EXPORT_FOR_CUDA bool is_equal() const noexcept;
  /// A hash. It is the same for divisions with the same parts, also if they were made in different ways.
  SYNCRUN_EXPORT_FOR_CUDA std::uint64_t fingerprint() const noexcept;

 private:
  std::int64_t elements_;
  int ranks_;
  std::size_t element_bytes_;
  std::span<const std::int64_t> lengths_;  // empty if share_of divides
};

/// The number of bytes of a rank's part that come next, when `done` bytes are done and at most `most` are handled at a
/// time.
inline std::size_t bytes_left(const Division& division, int rank, std::size_t done, std::size_t most) noexcept {
  const std::size_t all = division.bytes(rank);
  return std::min(most, all - std::min(done, all));
}

/// The weights of ranks in an average, in rows.
struct RankWeights {
  std::int64_t own = 1;                     // this rank's
  std::int64_t all = 1;                     // of all ranks together
  std::span<const std::int64_t> by_rank{};  // of each rank; used by start_average only
};

/// The implementation of Comm. There is one for each kind of device, one for ranks whose devices have no communicator in
/// common, and one for a single rank. Communicators chooses among them. Its ranks are those of
/// the command, numbered from 0 in the order of their ranks in the session.
class CommCore {
 public:
  virtual ~CommCore() = default;
  virtual int rank() const noexcept = 0;
  virtual int world_size() const noexcept = 0;
  virtual void barrier() = 0;
  /// Works in place. `weights` are used in avg.
  virtual void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          const RankWeights& weights) = 0;
  /// Rank `root` gets the result, in place. The values of other ranks may be overwritten.
  virtual void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
                      int root) = 0;
  /// `part` gets this rank's part of the result. `values` may be overwritten. `part` must not overlap `values`, unless
  /// it is this rank's own section of it.
  virtual void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                              const RankWeights& weights) = 0;
  virtual void broadcast(void* values, std::size_t elements, DType dtype, int root) = 0;
  /// Here and below, `part` must not overlap `all`, unless it is this rank's own section of it. In gather and scatter,
  /// only the root uses `all`.
  virtual void all_gather(const void* part, void* all, const Division& division) = 0;
  virtual void gather(const void* part, void* all, const Division& division, int root) = 0;
  virtual void scatter(const void* all, void* part, const Division& division, int root) = 0;
  /// Every rank gets the numbers of all ranks, in rank order, from host memory to host memory. The result is complete
  /// on return. This and the next function are for communicators whose other arrays are in host memory too.
  virtual void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) {
    all_gather(own.data(), all.data(), Division(all.size(), world_size(), sizeof(std::int64_t)));
  }
  /// all_reduce of one number in host memory. The result is complete on return.
  virtual void all_reduce_value(void* value, DType dtype, Reduction reduction, const RankWeights& weights) {
    all_reduce(value, 1, dtype, reduction, weights);
  }
  /// Operations between begin_group and end_group may start as late as in end_group. drop_group ends a group after an
  /// error.
  virtual void begin_group() {}
  virtual void end_group() {}
  virtual void drop_group() noexcept {}
  /// Called before the first collective of a command.
  virtual void begin(const protocol::Command&) {}
  /// Makes sure that the next collectives need no setup, so that they can be captured. Called by all ranks.
  virtual void prepare() {}
  /// Called by all ranks if some of them could not capture the work of a command: the collectives that a rank has captured
  /// do not count.
  virtual void forget_captured() noexcept {}
  /// Returns the smallest `own` of all ranks. Blocks. Called by all ranks.
  virtual std::int64_t agree(std::int64_t own) { return own; }
  /// Whether work with collectives can be recorded and run again without the host.
  virtual bool can_be_captured() const noexcept { return true; }
  /// Whether the work of start_average runs in parallel with what follows. If not, there is no reason to divide an
  /// average.
  virtual bool has_background() const noexcept { return false; }
  /// Starts the average of a part of an array, in place. Until join_started(), no other work may use `values`. The
  /// average comes after earlier collectives and earlier work of the caller. Ordinary collectives that are called later
  /// come after it. `first` is the element of the array at which the part begins. Ranks must agree on it, as on the
  /// other arguments. `weights` must have the weight of every rank.
  virtual void start_average(void* values, std::size_t elements, DType dtype, const RankWeights& weights,
                             [[maybe_unused]] std::size_t first) {
    all_reduce(values, elements, dtype, Reduction::avg, weights);
  }
  /// All work that was started comes before what follows.
  virtual void join_started() {}
  /// These two start a collective. Until it is joined, no other work may write to its arrays, or read its result. Like
  /// start_average, it comes after earlier work of the caller, and later collectives come after it. They return its
  /// number for join().
  virtual std::uint64_t start_all_gather(const void* part, void* all, const Division& division) {
    all_gather(part, all, division);
    return 0;
  }
  virtual std::uint64_t start_reduce_scatter(void* values, void* part, const Division& division, DType dtype,
                                             Reduction reduction, const RankWeights& weights) {
    reduce_scatter(values, part, division, dtype, reduction, weights);
    return 0;
  }
  /// Does what start_all_gather does, or maps the parts to the pages at `pages`; see detail::start_gather_into_pages.
  virtual std::uint64_t start_gather_into_pages(const void* part, void* pages, const Division& division) {
    return start_all_gather(part, pages, division);
  }
  /// This collective comes before what follows. May be called again.
  virtual void join([[maybe_unused]] std::uint64_t started) {}
  /// Called before and after each operation that a body calls, to record the phase.
  virtual void enter() {}
  virtual void leave() noexcept {}
  /// For metrics: a collective begins whose whole array has this size.
  virtual void count([[maybe_unused]] std::size_t bytes) noexcept {}
  /// See syncrun::CollectiveLabel. Empty: no label.
  virtual void set_label([[maybe_unused]] std::string_view text) noexcept {}
};

/// Marks the time that a body spends in a collective. If an exception leaves the collective, the phase stays, so the
/// failure is reported with it.
class InCollective {
 public:
  /// The caller counts the collective when it knows the size of the whole array.
  explicit InCollective(CommCore& core) : core_(core), exceptions_(std::uncaught_exceptions()) {
    process::end_if_forked();
    core_.enter();
  }
  /// `bytes` is the size of the whole array.
  InCollective(CommCore& core, std::size_t bytes) : InCollective(core) { core.count(bytes); }
  ~InCollective() {
    if (std::uncaught_exceptions() == exceptions_) core_.leave();
  }
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  CommCore& core_;
  int exceptions_;
};

/// A communicator of one rank. Its values are already complete.
class SoloComm : public CommCore {
 public:
  int rank() const noexcept override { return 0; }
  int world_size() const noexcept override { return 1; }
  void barrier() override {}
  void all_reduce(void*, std::size_t, DType, Reduction, const RankWeights&) override {}
  void reduce(void*, std::size_t, DType, Reduction, const RankWeights&, int) override {}
  void reduce_scatter(void* values, void* part, const Division& division, DType, Reduction,
                      const RankWeights&) override {
    move(part, values, division);
  }
  void broadcast(void*, std::size_t, DType, int) override {}
  void all_gather(const void* part, void* all, const Division& division) override { move(all, part, division); }
  void gather(const void* part, void* all, const Division& division, int) override { move(all, part, division); }
  void scatter(const void* all, void* part, const Division& division, int) override { move(part, all, division); }
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override {
    std::copy(own.begin(), own.end(), all.begin());
  }

 protected:
  virtual void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

 private:
  void move(void* to, const void* from, const Division& division) {
    if (to != from) copy(to, from, division.all_bytes());
  }
};

/// The ranks of a command, through shared memory. Here, a rank, a peer and a root are positions among these ranks. If a
/// command addresses all ranks of the session, each position is equal to the rank.
class CpuComm final : public CommCore {
 public:
  /// `interruption` ends waits for peers. The buffers are at the start of each rank's arena; see kReservedBytes.
  CpuComm(const process::Attachment& attachment, Meetings& meetings, const process::Interruption& interruption);

  /// Values of up to this size are copied to a buffer, so that one meeting is enough. Above this size, a second meeting
  /// costs less time than the copy and than reducing all elements on every rank. This was measured with one core per
  /// worker and with two workers per core.
  static constexpr std::size_t kSmallBytes = std::size_t{2} << 10U;
  /// Parts of at least this size are mapped. This size was not measured: for small parts, system calls would count.
  static constexpr std::size_t kSmallestMapped = std::size_t{64} << 10U;
  /// The memory of the communicator at the start of each rank's arena: two small buffers, a buffer for chunks, and a
  /// page of words for StreamMeetings.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20U;
  static constexpr std::size_t kMeetingBytes = std::size_t{4} << 10U;  // a page
  static constexpr std::size_t kReservedBytes = 2 * kSmallBytes + kChunkBytes + kMeetingBytes;

  SYNCRUN_EXPORT_FOR_CUDA void begin(const protocol::Command& command) noexcept override;
  int rank() const noexcept override { return meetings_.position(); }
  int world_size() const noexcept override { return meetings_.count(); }
  SYNCRUN_EXPORT_FOR_CUDA void barrier() override;
  /// A page of words with which the stream of one rank's device and the streams of its peers wait for each other
  /// (StreamMeetings). The rank is that of the session.
  SYNCRUN_EXPORT_FOR_CUDA std::span<std::uint32_t> meeting_words(int session_rank) const noexcept;
  SYNCRUN_EXPORT_FOR_CUDA void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                                          const RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
              int root) override;
  /// Changes `values` only where `part` lies in it.
  void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                      const RankWeights& weights) override;
  void broadcast(void* values, std::size_t elements, DType dtype, int root) override;
  SYNCRUN_EXPORT_FOR_CUDA void all_gather(const void* part, void* all, const Division& division) override;
  std::uint64_t start_gather_into_pages(const void* part, void* pages, const Division& division) override;
  void gather(const void* part, void* all, const Division& division, int root) override;
  void scatter(const void* all, void* part, const Division& division, int root) override;
  // The buffers in the arena of a rank of the command.
  std::byte* small_buffer(int rank, std::size_t parity) const noexcept;
  std::byte* chunk_buffer(int rank) const noexcept;
  std::uint64_t place_of(const void* values) const noexcept;  // as in Contribution::offset
  /// Waits until no peer uses any more what this rank has in shared memory for an earlier command. Called before values
  /// are written to memory that is used again in each command.
  void reclaim_buffers() { meetings_.reclaim_buffers(limits_); }
  void enter() override {
    own_time_.pause();
    mark(protocol::Phase::collective);
    attachment_.fault_point(meetings_.command().id, protocol::Phase::collective);
  }
  void leave() noexcept override {
    mark(protocol::Phase::function);
    own_time_.resume();
  }
  SYNCRUN_EXPORT_FOR_CUDA void count(std::size_t bytes) noexcept override;
  SYNCRUN_EXPORT_FOR_CUDA void set_label(std::string_view text) noexcept override;
  /// The time of this rank without its collectives.
  OwnTime& own_time() noexcept { return own_time_; }

 private:
  void mark(protocol::Phase phase) noexcept { attachment_.mark(meetings_.command().id, phase); }
  std::size_t meet(const protocol::Contribution& mine) { return meetings_.meet(mine, limits_); }
  void step() { meetings_.step(limits_); }
  const protocol::Contribution& contribution(int rank, std::size_t parity) const noexcept {
    return meetings_.contribution(rank, parity);
  }
  std::byte* buffers_of(int session_rank) const noexcept;
  bool all_in_segment(std::size_t parity) const noexcept;
  /// The root if all ranks get the result.
  static constexpr int kAll = -1;
  void reduce_to(int root, void* values, const protocol::Contribution& mine);
  void collect(const void* part, void* all, const Division& division, int root, bool maps = false);
  bool all_can_be_mapped(std::size_t parity, const Division& division) const noexcept;
  void spread(const void* all, std::size_t all_bytes, std::byte* part, std::size_t begin, std::size_t bytes,
              const protocol::Contribution& mine);
  /// Reduces this rank's part of the elements. Reads the array of every rank at `address(rank)`. Writes the result to
  /// the arrays of all ranks, or of the root.
  template <class Address>
  void reduce_part(std::size_t parity, std::size_t elements, int root, Address&& address);
  /// Fills sources_ and weights_ with the values and weights of the ranks. In averages, leaves out ranks without
  /// weight.
  template <class Address>
  void collect_sources(std::size_t parity, std::size_t skipped_bytes, Address&& address);

  const process::Attachment& attachment_;
  Meetings& meetings_;
  process::WaitLimits limits_;
  OwnTime own_time_;
  std::vector<double> weights_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace syncrun::detail::worker::comm
