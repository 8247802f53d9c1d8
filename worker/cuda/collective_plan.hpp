#pragma once

// Which collectives this rank has put on its GPU's stream, as its peers can compare: where ranks differ NCCL would wait for
// ever. Nothing here needs CUDA.

#include <chrono>
#include <cstdint>
#include <initializer_list>

#include "worker/attachment.hpp"

namespace syncrun::detail {

/// The collectives of a command as a hash, in the order of the host's calls, and how far this rank has come with them, in its
/// slot. Used by the thread that serves calls.
class CollectivePlan {
 public:
  using Clock = std::chrono::steady_clock;
  /// A rank that has set up what all did says so after this much, however slow its host.
  static constexpr std::chrono::seconds kSetUpGrace{1};

  explicit CollectivePlan(const Attachment& attachment) noexcept : attachment_(attachment) {}
  CollectivePlan(const CollectivePlan&) = delete;
  CollectivePlan& operator=(const CollectivePlan&) = delete;

  /// What follows belongs to the command in progress: a plan is one of one command.
  void enter_command() noexcept;
  std::uint64_t command() const noexcept { return command_; }
  /// What follows belongs to the reduction of outputs: all ranks have come through the body, and voted.
  void begin_after_vote() noexcept;
  /// Adds a collective: what every rank has to do alike, as numbers.
  void add(std::initializer_list<std::uint64_t> collective) noexcept;

  /// Midway: the call may go on to more collectives. Last: it will not, before it has voted.
  enum class Wait : std::uint8_t { midway = 1, last = 2 };
  /// Tells the peers that this rank waits for what it has added.
  void publish_waiting(Wait wait) noexcept;
  /// Tells them that it waits for them on the host, to set something up: those that wait for it on the device, in a
  /// collective that it has not come to, can see where it is.
  void publish_setting_up() noexcept { publish(State::setting_up); }
  void end_setting_up() const noexcept;
  /// After publish_waiting: throws Error (usage) if the ranks have come to different collectives.
  void check_peers(Clock::time_point now);

 private:
  /// What can be said of a rank; `unknown` in between. The first two are those of Wait.
  enum class State : std::uint8_t { unknown = 0, waits_midway = 1, waits_last = 2, setting_up = 3 };
  /// How far a rank has come, as its peers read it in WorkerSlot::plan_wait.
  struct Standing {
    static constexpr std::uint64_t kMostCounted = (std::uint64_t{1} << 22U) - 1;
    std::uint64_t
        part;  // of which command: twice its number, and one more after the vote. Who is before the vote then is
               // not behind: it has not said yet that it is after
    std::uint64_t count;  // of the command's collectives that it has come to
    State state;

    static Standing from(std::uint64_t word) noexcept {
      return {word >> 24U, (word >> 2U) & kMostCounted, static_cast<State>(word & 3U)};
    }
    std::uint64_t word() const noexcept;
  };
  void publish(State state) noexcept;
  std::uint64_t own_part() const noexcept { return command_ << 1U | (is_after_vote_ ? 1U : 0U); }
  bool disagrees(const Standing& peer, std::uint64_t its_hash, Clock::time_point now);

  const Attachment& attachment_;
  std::uint64_t command_ = 0;
  std::uint64_t hash_ = 0;
  std::uint64_t count_ = 0;
  bool is_after_vote_ = false;
  Wait wait_ = Wait::last;            // that this rank is in
  Clock::time_point astray_since_{};  // a peer that was seen setting up
};

}  // namespace syncrun::detail
