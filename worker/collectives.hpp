#pragma once

// Collectives, and those among CPU workers, over shared memory. Values that lie in the segment are worked on where they are, each
// rank doing its part; small ones, and those in private memory, go through a buffer of each rank.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"
#include "worker/attachment.hpp"

namespace syncrun::detail {

/// Thrown out of a wait when the call was abandoned: a peer failed. Not an Error: it is not this rank's.
class Abandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the call was abandoned, since another rank failed"; }
};

/// Thrown out of a wait when the session is over: a peer was lost.
class SessionLost : public std::exception {
 public:
  const char* what() const noexcept override { return "the session is over, since another worker was lost"; }
};

/// What is behind a Comm. One implementation for each kind of device, and one for a single rank.
class CommCore {
 public:
  virtual ~CommCore() = default;
  virtual int rank() const noexcept = 0;
  virtual int world_size() const noexcept = 0;
  virtual void barrier() = 0;
  /// In place; `weight` counts this rank in avg.
  virtual void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          std::int64_t weight) = 0;
  virtual void broadcast(void* values, std::size_t bytes, int root) = 0;
  virtual void all_gather(const void* values, std::size_t bytes, void* all) = 0;
  /// all_reduce of one number in host memory; done on return.
  virtual void all_reduce_value(void* value, DType dtype, Reduction reduction, std::int64_t weight) = 0;
  /// Before the first collective of a command.
  virtual void begin(const Command&) {}
  /// Makes sure that the next collective needs no set-up, so that it can be captured. Called by all ranks.
  virtual void prepare() {}
  /// The least that any rank brings; blocking. Called by all ranks.
  virtual std::int64_t agree(std::int64_t own) { return own; }
  /// Changes whenever work that was captured with the communicator has become meaningless.
  virtual std::uint64_t generation() const noexcept { return 0; }
  /// Around each operation that a body calls: the phase it is in.
  virtual void enter() noexcept {}
  virtual void leave() noexcept {}
  /// Rows of the current slice, this rank's and all ranks', for avg from inside a function.
  std::int64_t rows = 1;
  std::int64_t all_rows = 1;
};

/// A communicator of one: everything is there already.
class SoloComm : public CommCore {
 public:
  int rank() const noexcept override { return 0; }
  int world_size() const noexcept override { return 1; }
  void barrier() override {}
  void all_reduce(void*, std::size_t, DType, Reduction, std::int64_t) override {}
  void broadcast(void*, std::size_t, int) override {}
  void all_gather(const void* values, std::size_t bytes, void* all) override;
  void all_reduce_value(void*, DType, Reduction, std::int64_t) override {}
};

/// All workers of the session, by shared memory.
class CpuComm final : public CommCore {
 public:
  /// `policy`: how to wait for peers. The buffers are at the start of each rank's arena; see kReservedBytes.
  CpuComm(const Attachment& attachment, WaitPolicy policy);

  /// Up to here values are copied to a buffer, so that one meeting will do; from here on a second meeting is cheaper
  /// than the copy and every rank reducing all of it (measured with a core for each worker and with two workers a core).
  static constexpr std::size_t kSmallBytes = std::size_t{2} << 10U;
  /// Bytes at the start of each rank's arena that belong to its communicator.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20U;
  static constexpr std::size_t kReservedBytes = 2 * kSmallBytes + kChunkBytes;

  void begin(const Command& command) noexcept override;
  /// After the last: peers that still wait for this rank learn that it will not come.
  void leave(const Command& command) noexcept;
  /// Waits until every participant has voted on the command; true if all are for it.
  bool all_voted_ok(const Command& command);

  int rank() const noexcept override { return attachment_.rank; }
  int world_size() const noexcept override { return attachment_.world_size; }
  void barrier() override;
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, std::int64_t weight) override;
  void broadcast(void* values, std::size_t bytes, int root) override;
  void all_gather(const void* values, std::size_t bytes, void* all) override;
  void all_reduce_value(void* value, DType dtype, Reduction reduction, std::int64_t weight) override {
    all_reduce(value, 1, dtype, reduction, weight);
  }
  void enter() noexcept override { mark(Phase::collective); }
  void leave() noexcept override { mark(Phase::function); }

 private:
  void mark(Phase phase) noexcept { attachment_.mark(command_->id, phase); }
  /// Tells the peers what this rank brings, waits for all of them, and checks that they agree. Returns where in the
  /// parity-th contribution of each rank it all stands.
  std::size_t meet(const Contribution& mine);
  void reclaim_buffers();
  void step();  // a barrier
  enum class Presence : std::uint8_t { behind, here, elsewhere };
  Presence presence_of(int rank) const noexcept;
  [[noreturn]] void complain_of_absence(int rank) const;
  template <class Ready>
  void await(Ready&& ready);
  void check_agreement(std::size_t parity) const;
  const Contribution& contribution(int rank, std::size_t parity) const noexcept;
  std::byte* small_buffer(int rank, std::size_t parity) const noexcept;
  std::byte* chunk_buffer(int rank) const noexcept;
  bool all_in_segment(std::size_t parity) const noexcept;
  /// Reduces this rank's part of the elements, reading and writing every rank's array at `address(rank)`.
  template <class Address>
  void reduce_part(std::size_t parity, std::size_t elements, Address&& address);
  /// Fills sources_ and weights_ with what each rank brings; ranks without weight are left out of averages.
  template <class Address>
  void collect_sources(std::size_t parity, std::size_t skipped_bytes, Address&& address);
  bool is_given_up() const noexcept;

  const Attachment& attachment_;
  WaitPolicy policy_;
  const Command* command_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint64_t operations_ = 0;
  std::uint64_t last_command_ = 0;  // the last in which this rank's buffers were read by others
  std::vector<double> weights_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace syncrun::detail
