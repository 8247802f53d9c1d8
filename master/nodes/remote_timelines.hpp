#pragma once

// The timelines of ranks on other nodes, for profiles and traces, and their totals, for metrics. The agent sends what the
// workers of its node have recorded. The master adds it to its own timelines of these ranks, and replaces its totals of
// them. So the rest of the master reads all ranks in the same way. If neither timelines nor totals are kept, nothing is
// sent.
//
// Clocks of different nodes are not compared. The agent says how long after the begin of its command each event was. The
// master puts the begin where it cannot be too late: at the time when it has sent the command, or when the rank's command
// before that was over. So each command of a rank lies between the times when the master has sent it and has heard of its
// end, in the order of commands.

#include <cstdint>
#include <deque>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/os/segment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/rank_totals.hpp"
#include "common/protocol/timeline.hpp"
#include "master/nodes/messages.hpp"

namespace syncrun::detail::master::nodes {

/// Reserves the memory of the timelines and the totals of this node's ranks, if they are kept. Throws Error (system).
void reserve_timelines(const os::Segment& segment, const protocol::ControlHeader& header);

/// An agent has one.
class TimelineSender {
 public:
  TimelineSender(const protocol::ControlBlock& control, const os::Segment& segment);
  /// Adds what a rank of this node has recorded since the last time, and its totals now.
  void put(MessageWriter& to, int rank);

 private:
  struct RankState {
    std::uint64_t read = 0;  // how many events were read
    std::uint64_t command = 0;
    std::int64_t begin_ns = 0;  // of the command, on the clock of this node
  };

  const protocol::ControlBlock& control_;
  const os::Segment& segment_;
  std::vector<RankState> ranks_;  // by local rank
};

/// The master has one.
class TimelineReceiver {
 public:
  TimelineReceiver(protocol::ControlBlock control, const os::Segment& segment);
  /// Notes that a command is sent now. Called by the thread that publishes commands, before it sends the command.
  void note_sent(const protocol::Command& command);
  /// Adds to the timeline of the rank what its agent has sent, and then that the master knows of the end of commands. One
  /// thread at a time, and it may be another one than the thread that publishes.
  void take(MessageReader& from, int rank);

 private:
  struct Sent {
    std::uint64_t command;
    os::Clock::time_point at;
  };
  /// On the clock of the master.
  struct RankState {
    std::uint64_t command = 0;  // that has begun last
    os::Clock::time_point begin{};
    os::Clock::time_point free_since{};  // the last command is over
  };
  bool are_kept() const noexcept { return control_.header().timelines_offset != 0; }
  void begin(int rank, std::uint64_t command);

  protocol::ControlBlock control_;
  const os::Segment& segment_;
  // By rank; those of this node are not used.
  std::vector<RankState> ranks_;
  os::Mutex mutex_;
  std::vector<std::deque<Sent>> sent_ SYNCRUN_GUARDED_BY(mutex_);  // commands that have not begun
};

}  // namespace syncrun::detail::master::nodes
