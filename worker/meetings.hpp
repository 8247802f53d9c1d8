#pragma once

// How the ranks of a command meet in shared memory. In a meeting each rank writes down what it brings, counts its step in its
// slot, waits for all, and checks that all bring the same: a mismatch is an error on every rank, and not a wrong result.
//
//   begin(command) -> meet() and step(), by all ranks in the same order -> leave(command)
//
// A rank that leaves says how many steps it took: who waits for one that it did not take learns that it will not come.

#include <cstddef>
#include <cstdint>

#include "worker/attachment.hpp"
#include "worker/interruption.hpp"

namespace syncrun::detail {

class Meetings {
 public:
  /// `policy`: how to wait for peers.
  Meetings(const Attachment& attachment, WaitPolicy policy) noexcept : attachment_(attachment), policy_(policy) {}
  Meetings(const Meetings&) = delete;
  Meetings& operator=(const Meetings&) = delete;

  /// Before the first meeting of a command.
  void begin(const Command& command) noexcept;
  /// After the last: peers that still wait for this rank learn that it will not come.
  void leave(const Command& command) noexcept;
  /// The command of begin().
  const Command& command() const noexcept { return *command_; }

  /// Tells the peers what this rank brings, waits for all of them, and checks that they agree. Returns which of the two
  /// contributions of each rank it all stands in. Throws Error (usage) on every rank where they differ, and what ends the
  /// wait; Error (timeout) after the deadline, and no meeting of this command can succeed then.
  std::size_t meet(const Contribution& mine, const WaitLimits& limits);
  /// A meeting to which nobody brings anything: it only waits.
  void step(const WaitLimits& limits);
  /// The contribution that the next meet() writes.
  std::size_t next_parity() const noexcept { return meetings_ % 2; }
  const Contribution& contribution(int rank, std::size_t parity) const noexcept;
  /// Before the first meeting of a command, and before what belongs to it is written where peers read: one of them may still
  /// be reading what this rank wrote for an earlier command.
  void reclaim_buffers(const WaitLimits& limits);

  /// Waits until every participant has voted on the command; true if all are for it. Only a loss ends this wait.
  bool all_voted_ok(const Command& command);

  /// Waits for what a peer writes to its slot before it rings for its peers.
  template <class Ready>
  void await(Ready&& ready, const WaitLimits& limits);

 private:
  enum class Presence : std::uint8_t { behind, here, elsewhere };
  Presence presence_of(int rank) const noexcept;
  void take_step() noexcept;
  void check_that_all_are_here(const Interruption& interruption) const;
  void check_agreement(std::size_t parity) const;

  const Attachment& attachment_;
  WaitPolicy policy_;
  const Command* command_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint64_t meetings_ = 0;      // those with contributions, of this command
  std::uint64_t last_command_ = 0;  // the last in which this rank's buffers were read by others
};

Patience patience_of(const WaitLimits& limits) noexcept;
/// Throws Error (timeout).
[[noreturn]] void throw_peers_late(const WaitLimits& limits);

template <class Ready>
void Meetings::await(Ready&& ready, const WaitLimits& limits) {
  Patience patience = patience_of(limits);
  const auto interrupted = [&] { return limits.interruption.is_set(); };
  const Woken woken = wait_until(attachment_.control.header().to_peers, policy_, patience, ready, interrupted);
  if (woken == Woken::interrupted) limits.interruption.raise();
  if (woken == Woken::expired) throw_peers_late(limits);
}

}  // namespace syncrun::detail
