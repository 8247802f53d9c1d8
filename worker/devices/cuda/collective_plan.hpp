#pragma once

// Records which collectives this rank has put on its GPU's stream, so that its peers can compare. If ranks differ, NCCL
// would wait for ever. The slots of ranks of other nodes have what their nodes have told (NodeExchange). It may be old. But
// what makes ranks differ stays so: the hash of a number of collectives, and that no more follow. The code here does not
// need CUDA.

#include <chrono>
#include <cstdint>
#include <initializer_list>

#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// A hash of the collectives of a command, in the order of the host's calls, and how many of them this rank has
/// reached. Both are published in the rank's slot. Used by the thread that serves calls.
class CollectivePlan {
 public:
  using Clock = std::chrono::steady_clock;
  /// A rank that sets something up together with this rank leaves the state `setting_up` within this time, even on a
  /// slow host.
  static constexpr std::chrono::seconds kSetUpGrace{1};
  /// The same for a rank of another node. What is known of it is some time old: its node tells of it four times a second.
  static constexpr std::chrono::seconds kSetUpGraceOfNodes{5};

  explicit CollectivePlan(const process::Attachment& attachment) noexcept : attachment_(attachment) {}
  CollectivePlan(const CollectivePlan&) = delete;
  CollectivePlan& operator=(const CollectivePlan&) = delete;

  /// From here on, collectives belong to the command in progress. A plan starts anew with each command.
  void enter_command() noexcept;
  /// Forgets the collectives of the command in progress.
  void restart() noexcept;
  std::uint64_t command() const noexcept { return command_; }
  /// From here on, collectives belong to the reduction of outputs. All ranks have completed the body and voted.
  void begin_after_vote() noexcept;
  /// Adds a collective. The numbers describe what must be the same on every rank.
  void add(std::initializer_list<std::uint64_t> collective) noexcept;

  /// `midway`: more collectives of the call may follow. `last`: no more collectives follow before this rank has voted.
  enum class Wait : std::uint8_t { midway = 1, last = 2 };
  /// Tells the peers that this rank waits for the collectives that it has added.
  void publish_waiting(Wait wait) noexcept;
  /// Tells the peers that this rank waits for them on the host, to set something up. A peer may wait on its device for
  /// this rank in a collective that this rank has not reached. This state tells the peer where this rank is.
  void publish_setting_up() noexcept { publish(State::setting_up); }
  void end_setting_up() const noexcept;
  /// Called after publish_waiting. Throws Error (usage) if the ranks have reached different collectives.
  void check_peers(Clock::time_point now);

 private:
  /// What a rank has published about itself; `unknown` in between. The values of waits_midway and waits_last are those
  /// of Wait.
  enum class State : std::uint8_t { unknown = 0, waits_midway = 1, waits_last = 2, setting_up = 3 };
  /// How far a rank has come, as its peers read it in WorkerSlot::plan_wait. Ranks with different `part` are not
  /// compared. A peer with an earlier part is not behind for certain, because it may not have published its new part
  /// yet.
  struct Standing {
    static constexpr std::uint64_t kMostCounted = (std::uint64_t{1} << 22U) - 1;
    std::uint64_t part;   // twice the number of the command, plus one after the vote
    std::uint64_t count;  // how many collectives of the command it has reached
    State state;

    static Standing from(std::uint64_t word) noexcept {
      return {word >> 24U, (word >> 2U) & kMostCounted, static_cast<State>(word & 3U)};
    }
    std::uint64_t word() const noexcept;
  };
  void publish(State state) noexcept;
  std::uint64_t own_part() const noexcept { return command_ << 1U | (is_after_vote_ ? 1U : 0U); }
  bool is_elsewhere(int rank) const noexcept { return !attachment_.place.has(rank); }
  bool disagrees(const Standing& peer, std::uint64_t its_hash, Clock::time_point now, Clock::duration grace);

  const process::Attachment& attachment_;
  std::uint64_t command_ = 0;
  std::uint64_t hash_ = 0;
  std::uint64_t count_ = 0;
  bool is_after_vote_ = false;
  Wait wait_ = Wait::last;            // the one that this rank is in
  Clock::time_point astray_since_{};  // when this rank first saw a peer that sets something up
};

}  // namespace syncrun::detail::worker::devices::cuda
