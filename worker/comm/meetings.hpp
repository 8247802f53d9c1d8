#pragma once

// How the ranks of a command wait for each other in shared memory. In a meeting, each rank describes its contribution,
// increments the number of steps in its slot, waits for all ranks, and checks that all contributions agree. If they do
// not, every rank gets an error, and no rank gets a wrong result. Ranks that the command does not address take no part,
// and no rank waits for them. Ranks of other nodes take no part either: NodesComm brings the nodes together.
//
//   begin(command) -> meet() and step(), by all ranks in the same order -> leave(command)
//
// A rank that leaves records how many steps it has taken. So a peer that waits for a later step of this rank learns
// that the rank will not take it.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/process/attachment.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::comm {

class Meetings {
 public:
  /// `policy` says how to wait for peers.
  Meetings(const process::Attachment& attachment, os::WaitPolicy policy);
  Meetings(const Meetings&) = delete;
  Meetings& operator=(const Meetings&) = delete;

  /// Called before the first meeting of a command, by the ranks that it addresses.
  void begin(const protocol::Command& command) noexcept;
  /// Called after the last meeting. Peers that still wait for this rank learn that it will not come. If this was called
  /// for the command before, nothing happens.
  void leave(const protocol::Command& command) noexcept;
  /// The command that was passed to begin().
  const protocol::Command& command() const noexcept { return *command_; }

  /// The ranks of that command on this node, in ascending order. Before the first command, the ranks of the session.
  const std::vector<int>& ranks() const noexcept { return ranks_; }
  int count() const noexcept { return static_cast<int>(ranks_.size()); }
  /// This rank's position among ranks().
  int position() const noexcept { return position_; }
  int rank_at(int position) const noexcept { return ranks_[static_cast<std::size_t>(position)]; }

  /// This rank leads its node, and begins to exchange blocks with other nodes.
  void note_exchange() noexcept { ++exchanges_; }
  const os::WaitPolicy& policy() const noexcept { return policy_; }

  /// Later meetings of the command have this label, which the ranks compare. Empty: none.
  void set_label(std::string_view text) noexcept;
  /// Publishes the contribution of this rank, waits for all ranks, and checks that their contributions agree. Each rank
  /// has two places for contributions. Returns which of the two this meeting has used. Throws Error (usage) on every
  /// rank if contributions differ, Error (timeout) after the deadline, and what interrupts the wait. The deadline is
  /// for all waits of the meeting together. After an error, no meeting of this command can succeed.
  std::size_t meet(const protocol::Contribution& mine, const process::WaitLimits& limits);
  /// A meeting without contributions, which only waits.
  void step(const process::WaitLimits& limits);
  /// The place of the contribution that the next meet() will use.
  std::size_t next_parity() const noexcept { return meetings_ % 2; }
  const protocol::Contribution& contribution(int position, std::size_t parity) const noexcept {
    return attachment_.control.worker(rank_at(position)).contributions[parity];
  }
  /// Waits until no peer reads any more what this rank wrote for an earlier command. Called before the first meeting of
  /// a command, and before values of the command are written to places where peers read.
  void reclaim_buffers(const process::WaitLimits& limits);

  /// Waits until every rank of the command has voted. Returns true if all votes are ok. Only the loss of a worker ends
  /// this wait early.
  bool all_voted_ok(const protocol::Command& command);

  /// Waits for something that a peer writes to its slot before it rings the doorbell of its peers.
  template <class Ready>
  void await(Ready&& ready, const process::WaitLimits& limits);

 private:
  enum class Presence : std::uint8_t { behind, here, elsewhere };
  Presence presence_of(int rank) const noexcept;
  void take_ranks(const protocol::RankSet& ranks) noexcept;
  bool is_here(int rank) const noexcept { return attachment_.place.has(rank); }
  bool all_here_voted_ok(const protocol::Command& command, bool& are_all_in) const noexcept;
  void take_step() noexcept;
  void step(const process::WaitLimits& limits, os::Patience& patience);
  void reclaim_buffers(const process::WaitLimits& limits, os::Patience& patience);
  template <class Ready>
  void await(Ready&& ready, const process::WaitLimits& limits, os::Patience& patience);
  void check_that_all_are_here(const process::Interruption& interruption) const;
  void check_agreement(std::size_t parity) const;

  const process::Attachment& attachment_;
  os::WaitPolicy policy_;
  const protocol::Command* command_ = nullptr;
  std::uint64_t begun_ = 0;  // the number of that command
  std::uint64_t left_ = 0;   // the number of the last command that this rank has left
  protocol::RankSet set_;    // the ranks for which ranks_ and position_ were computed
  std::vector<int> ranks_;   // both vectors have capacity for all ranks from the start
  int position_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t exchanges_ = 0;  // with other nodes, in this command
  std::uint64_t meetings_ = 0;   // meetings with contributions in this command
  protocol::CollectiveLabel label_{};
  std::uint64_t last_command_ = 0;  // the last command in which other ranks read this rank's buffers
  std::vector<int> readers_;        // the ranks of that command
};

/// Throws Error (usage) if these contributions of two ranks of the session are to different collectives.
void require_agreement(const protocol::Contribution& first, int first_rank, const protocol::Contribution& other,
                       int other_rank);
/// Throws Error (usage): `rank` still waits in a collective, and `other` has left the call.
[[noreturn]] void throw_has_left(int other, int rank);

os::Patience patience_of(const process::WaitLimits& limits) noexcept;
/// Throws Error (timeout).
[[noreturn]] void throw_peers_late(const process::WaitLimits& limits);

template <class Ready>
void Meetings::await(Ready&& ready, const process::WaitLimits& limits) {
  os::Patience patience = patience_of(limits);
  await(std::forward<Ready>(ready), limits, patience);
}

template <class Ready>
void Meetings::await(Ready&& ready, const process::WaitLimits& limits, os::Patience& patience) {
  const auto interrupted = [&] { return limits.interruption.is_set(); };
  const os::Woken woken = os::wait_until(attachment_.control.header().to_peers, policy_, patience, ready, interrupted);
  if (woken == os::Woken::interrupted) limits.interruption.raise();
  if (woken == os::Woken::expired) throw_peers_late(limits);
}

}  // namespace syncrun::detail::worker::comm
