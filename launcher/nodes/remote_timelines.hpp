#pragma once

// The timelines of ranks on other nodes, for profiles and traces. The agent sends what the workers of its node have
// recorded, and the master adds it to its own timelines of these ranks. So the rest of the master reads the timelines of
// all ranks in the same way. If no timelines are kept, nothing is sent.
//
// Clocks of different nodes are not compared. The agent says how long after the begin of its command each event was. The
// master puts the begin where it cannot be too late: at the time when it has sent the command, or when the rank's command
// before that was over. So each command of a rank lies between the times when the master has sent it and has heard of its
// end, in the order of commands.

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "common/os/segment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/timeline.hpp"
#include "launcher/nodes/messages.hpp"

namespace syncrun::detail {

/// Reserves the memory of the timelines of this node's ranks. Does nothing if none are kept. Throws Error (system).
void reserve_timelines(const Segment& segment, const ControlHeader& header);

/// An agent has one.
class TimelineSender {
 public:
  TimelineSender(const ControlBlock& control, const Segment& segment);
  /// Adds what a rank of this node has recorded since the last time.
  void put(MessageWriter& to, int rank);

 private:
  struct RankState {
    std::uint64_t read = 0;  // how many events were read
    std::uint64_t command = 0;
    std::int64_t begin_ns = 0;  // of the command, on the clock of this node
  };

  const ControlBlock& control_;
  const Segment& segment_;
  std::vector<RankState> ranks_;  // by local rank
};

/// The master has one.
class TimelineReceiver {
 public:
  TimelineReceiver(ControlBlock control, const Segment& segment);
  /// Notes that a command is sent now. Called by the thread that publishes commands, before it sends the command.
  void note_sent(const Command& command);
  /// Adds to the timeline of the rank what its agent has sent, and then that the master knows of the end of commands. One
  /// thread at a time, and it may be another one than the thread that publishes.
  void take(MessageReader& from, int rank);

 private:
  struct Sent {
    std::uint64_t command;
    Clock::time_point at;
  };
  /// On the clock of the master.
  struct RankState {
    std::deque<Sent> sent;      // under lock_: commands that have not begun
    std::uint64_t command = 0;  // that has begun last
    Clock::time_point begin{};
    Clock::time_point free_since{};  // the last command is over
  };
  bool are_kept() const noexcept { return control_.header().timelines_offset != 0; }
  void begin(RankState& state, std::uint64_t command);

  ControlBlock control_;
  const Segment& segment_;
  std::mutex lock_;
  std::vector<RankState> ranks_;  // by rank; those of this node are not used
};

}  // namespace syncrun::detail
