#pragma once

// Collectives, and those among CPU workers, over shared memory. Values that lie in the segment are worked on where they are, each
// rank doing its part; small ones, and those in private memory, go through a buffer of each rank.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <vector>

#include "common/export_for_cuda.hpp"
#include "common/rows.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"
#include "worker/attachment.hpp"
#include "worker/interruption.hpp"
#include "worker/meetings.hpp"
#include "worker/user_code.hpp"

namespace syncrun::detail {

/// How the elements of an array are divided among the ranks, in rank order: as share_of divides them, or by lengths.
class Division {
 public:
  Division(std::size_t elements, int ranks, std::size_t element_bytes) noexcept
      : elements_(static_cast<std::int64_t>(elements)), ranks_(ranks), element_bytes_(element_bytes) {}
  /// `lengths`: of each rank's part; they outlive this.
  Division(std::span<const std::int64_t> lengths, std::size_t element_bytes) noexcept;

  SYNCRUN_EXPORT_FOR_CUDA RowRange of(int rank) const noexcept;
  std::int64_t elements() const noexcept { return elements_; }
  std::size_t element_bytes() const noexcept { return element_bytes_; }
  std::size_t begin_bytes(int rank) const noexcept { return static_cast<std::size_t>(of(rank).begin) * element_bytes_; }
  std::size_t bytes(int rank) const noexcept { return static_cast<std::size_t>(of(rank).count()) * element_bytes_; }
  std::size_t all_bytes() const noexcept { return static_cast<std::size_t>(elements_) * element_bytes_; }
  std::size_t largest_bytes() const noexcept;
  /// All ranks have the same number of elements.
  SYNCRUN_EXPORT_FOR_CUDA bool is_equal() const noexcept;
  /// The same where all parts are, whichever way it was made.
  SYNCRUN_EXPORT_FOR_CUDA std::uint64_t fingerprint() const noexcept;

 private:
  std::int64_t elements_;
  int ranks_;
  std::size_t element_bytes_;
  std::span<const std::int64_t> lengths_;  // empty: as share_of divides
};

/// Bytes of a rank's part that are left once `done` are, `most` at a time.
inline std::size_t bytes_left(const Division& division, int rank, std::size_t done, std::size_t most) noexcept {
  const std::size_t all = division.bytes(rank);
  return std::min(most, all - std::min(done, all));
}

/// What the ranks count in an average, in rows.
struct RankWeights {
  std::int64_t own = 1;                     // this rank's
  std::int64_t all = 1;                     // of all ranks together
  std::span<const std::int64_t> by_rank{};  // of each; for start_average only
};

/// What is behind a Comm. One implementation for each kind of device, and one for a single rank.
class CommCore {
 public:
  virtual ~CommCore() = default;
  virtual int rank() const noexcept = 0;
  virtual int world_size() const noexcept = 0;
  virtual void barrier() = 0;
  /// In place; `weights` count in avg.
  virtual void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          const RankWeights& weights) = 0;
  /// The result to rank `root`, in place; other ranks' values are used up.
  virtual void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
                      int root) = 0;
  /// This rank's part of the result to `part`; `values` is used up. `part` does not overlap it, or is its own section of it.
  virtual void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                              const RankWeights& weights) = 0;
  virtual void broadcast(void* values, std::size_t bytes, int root) = 0;
  /// Here and below, `part` does not overlap `all`, or is its own section of it; `all` is looked at on the root only.
  virtual void all_gather(const void* part, void* all, const Division& division) = 0;
  virtual void gather(const void* part, void* all, const Division& division, int root) = 0;
  virtual void scatter(const void* all, void* part, const Division& division, int root) = 0;
  /// Every rank's numbers, from host memory to host memory, in rank order; done on return.
  virtual void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) = 0;
  /// all_reduce of one number in host memory; done on return.
  virtual void all_reduce_value(void* value, DType dtype, Reduction reduction, const RankWeights& weights) = 0;
  /// Between the two, operations need not start before the end. drop_group ends a group that went wrong.
  virtual void begin_group() {}
  virtual void end_group() {}
  virtual void drop_group() noexcept {}
  /// Before the first collective of a command.
  virtual void begin(const Command&) {}
  /// Makes sure that the next collective needs no set-up, so that it can be captured. Called by all ranks.
  virtual void prepare() {}
  /// The least that any rank brings; blocking. Called by all ranks.
  virtual std::int64_t agree(std::int64_t own) { return own; }
  /// Changes whenever work that was captured with the communicator has become meaningless.
  virtual std::uint64_t generation() const noexcept { return 0; }
  /// Whether start_average goes on beside what follows; where it does not, there is no use in cutting an average up.
  virtual bool has_background() const noexcept { return false; }
  /// Starts the average of a part of an array, in place: `values` is nobody else's until join_started(). It comes after the
  /// collectives, and the work of the caller, before it; ordinary collectives come after it. `first`: where the part begins
  /// in the array, which ranks agree on as on the rest. `weights` say what every rank counts.
  virtual void start_average(void* values, std::size_t elements, DType dtype, const RankWeights& weights,
                             [[maybe_unused]] std::size_t first) {
    all_reduce(values, elements, dtype, Reduction::avg, weights);
  }
  /// What was started is done before what follows.
  virtual void join_started() {}
  /// Around each operation that a body calls: the phase it is in.
  virtual void enter() {}
  virtual void leave() noexcept {}
};

/// Marks the time a body spends in a collective. What is thrown out of it was thrown there.
class InCollective {
 public:
  explicit InCollective(CommCore& core) : core_(core), exceptions_(std::uncaught_exceptions()) {
    end_if_forked();
    core_.enter();
  }
  ~InCollective() {
    if (std::uncaught_exceptions() == exceptions_) core_.leave();
  }
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  CommCore& core_;
  int exceptions_;
};

/// A communicator of one: everything is there already.
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
  void broadcast(void*, std::size_t, int) override {}
  void all_gather(const void* part, void* all, const Division& division) override { move(all, part, division); }
  void gather(const void* part, void* all, const Division& division, int) override { move(all, part, division); }
  void scatter(const void* all, void* part, const Division& division, int) override { move(part, all, division); }
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override {
    std::copy(own.begin(), own.end(), all.begin());
  }
  void all_reduce_value(void*, DType, Reduction, const RankWeights&) override {}

 protected:
  virtual void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

 private:
  void move(void* to, const void* from, const Division& division) {
    if (to != from) copy(to, from, division.all_bytes());
  }
};

/// All workers of the session, by shared memory.
class CpuComm final : public CommCore {
 public:
  /// `interruption`: of waits for peers. The buffers are at the start of each rank's arena; see kReservedBytes.
  CpuComm(const Attachment& attachment, Meetings& meetings, const Interruption& interruption);

  /// Up to here values are copied to a buffer, so that one meeting will do; from here on a second meeting is cheaper
  /// than the copy and every rank reducing all of it (measured with a core for each worker and with two workers a core).
  static constexpr std::size_t kSmallBytes = std::size_t{2} << 10U;
  /// Bytes at the start of each rank's arena that belong to its communicator.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20U;
  static constexpr std::size_t kMeetingBytes = std::size_t{4} << 10U;  // a page
  static constexpr std::size_t kReservedBytes = 2 * kSmallBytes + kChunkBytes + kMeetingBytes;

  SYNCRUN_EXPORT_FOR_CUDA void begin(const Command& command) noexcept override;
  int rank() const noexcept override { return attachment_.rank; }
  int world_size() const noexcept override { return attachment_.world_size; }
  SYNCRUN_EXPORT_FOR_CUDA void barrier() override;
  /// Of a rank: a page of words that its device's streams meet its peers' by (StreamMeetings).
  SYNCRUN_EXPORT_FOR_CUDA std::span<std::uint32_t> meeting_words(int rank) const noexcept;
  SYNCRUN_EXPORT_FOR_CUDA void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                                          const RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
              int root) override;
  /// Leaves `values` as they are, but for the part's place.
  void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                      const RankWeights& weights) override;
  void broadcast(void* values, std::size_t bytes, int root) override;
  SYNCRUN_EXPORT_FOR_CUDA void all_gather(const void* part, void* all, const Division& division) override;
  void gather(const void* part, void* all, const Division& division, int root) override;
  void scatter(const void* all, void* part, const Division& division, int root) override;
  SYNCRUN_EXPORT_FOR_CUDA void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override;
  void all_reduce_value(void* value, DType dtype, Reduction reduction, const RankWeights& weights) override {
    all_reduce(value, 1, dtype, reduction, weights);
  }
  void enter() override {
    mark(Phase::collective);
    attachment_.fault_point(meetings_.command().id, Phase::collective);
  }
  void leave() noexcept override { mark(Phase::function); }

 private:
  void mark(Phase phase) noexcept { attachment_.mark(meetings_.command().id, phase); }
  std::size_t meet(const Contribution& mine) { return meetings_.meet(mine, limits_); }
  void step() { meetings_.step(limits_); }
  void reclaim_buffers() { meetings_.reclaim_buffers(limits_); }
  const Contribution& contribution(int rank, std::size_t parity) const noexcept {
    return meetings_.contribution(rank, parity);
  }
  std::byte* small_buffer(int rank, std::size_t parity) const noexcept;
  std::byte* chunk_buffer(int rank) const noexcept;
  bool all_in_segment(std::size_t parity) const noexcept;
  /// Ranks that get a result, or have what the others get.
  static constexpr int kAll = -1;
  void reduce_to(int root, void* values, const Contribution& mine);
  void collect(const void* part, void* all, const Division& division, int root);
  void spread(const void* all, std::size_t all_bytes, std::byte* part, std::size_t begin, std::size_t bytes,
              const Contribution& mine);
  /// Reduces this rank's part of the elements, reading every rank's array at `address(rank)`, and writing to those of all
  /// or of the root.
  template <class Address>
  void reduce_part(std::size_t parity, std::size_t elements, int root, Address&& address);
  std::uint64_t place_of(const void* values) const noexcept;  // as in Contribution
  /// Fills sources_ and weights_ with what each rank brings; ranks without weight are left out of averages.
  template <class Address>
  void collect_sources(std::size_t parity, std::size_t skipped_bytes, Address&& address);

  const Attachment& attachment_;
  Meetings& meetings_;
  WaitLimits limits_;
  std::vector<double> weights_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace syncrun::detail
