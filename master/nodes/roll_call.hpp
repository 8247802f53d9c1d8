#pragma once

// The nodes of a job say what they are before there is a session, and the master checks that they fit.

#include <optional>

#include "common/os/wait.hpp"
#include "master/nodes/node_group.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

/// The master's check of all agents. It happens once. If it fails, it has failed for good: an agent says only once what it
/// is, and a program that tries again must not go on with nodes that do not fit.
class RollCall {
 public:
  /// `group` outlives this.
  explicit RollCall(NodeGroup& group) : group_(group) {}

  /// Waits until all agents have said what they are, for at most `limit`, checks them, and gives the group the names of the
  /// nodes. Later calls return at once, or throw the error of the first one. Throws Error (usage, worker_lost, timeout).
  void require(os::Milliseconds limit);

 private:
  void await_hellos(os::Milliseconds limit);

  NodeGroup& group_;
  bool is_complete_ = false;
  std::optional<Error> failure_;
};

}  // namespace syncrun::detail::master::nodes
