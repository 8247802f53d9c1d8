#pragma once

// Chooses how the ranks of a command communicate. The workers follow the choice, so it is the same on all ranks.

#include <vector>

#include "common/protocol/comm_choice.hpp"
#include "master/devices/rank_devices.hpp"

namespace syncrun::detail::master::devices {

/// The communicators of a session's GPUs: one for each set of GPUs that has been used. Used by the master's thread.
class CommTable {
 public:
  /// `devices` must outlive this object. It may get its contents later than this object, but before the first choice.
  explicit CommTable(const RankDevices& devices) noexcept : devices_(devices) {}

  /// A set of GPUs gets the index of its communicator when it is first chosen. When all indices are in use, further
  /// sets communicate through host memory.
  protocol::CommChoice choose(const protocol::RankSet& ranks) {
    return ranks.is_single() ? protocol::CommChoice::alone() : choose_for_peers(ranks);
  }
  /// From now on, these ranks have connections to each other. They use them in commands without other ranks. The set has one
  /// CPU device of each node, or is empty. Commands with several ranks of a node do not use connections: in some runs, large
  /// arrays then took two to three times as long.
  void set_linked(const protocol::RankSet& leaders) { linked_ = leaders; }
  bool are_linked() const noexcept { return !linked_.is_empty(); }
  /// Whether the communicator that choose() has returned for these ranks is one of NCCL. Commands with its collectives
  /// end with a vote. So all ranks know about a failure, after which they make a new communicator.
  bool is_nccl(protocol::CommChoice comm, const protocol::RankSet& ranks) const noexcept;

 private:
  protocol::CommChoice choose_for_peers(const protocol::RankSet& ranks);
  bool are_whole_session_of_gpus(const protocol::RankSet& ranks) const noexcept;

  const RankDevices& devices_;
  protocol::RankSet linked_;
  std::vector<protocol::RankSet> gpu_sets_;  // the set at i has the index i + 1
};

}  // namespace syncrun::detail::master::devices
