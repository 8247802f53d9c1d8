#pragma once

// What a process does as the agent of its node.

#include <cstdint>
#include <memory>
#include <optional>

#include "master/nodes/node_group.hpp"
#include "master/nodes/node_session.hpp"

namespace syncrun::detail::master::nodes {

/// Serves the master until it takes leave: names the devices of this node, and runs its part of the sessions, one after
/// the other. Also tells the master what this node is.
class AgentRole final : private NodeListener {
 public:
  explicit AgentRole(NodeGroup& group) : group_(group) {}

  /// Returns what the master has said at its end. Throws Error if the master is lost, or if this node cannot continue.
  Farewell serve();

 private:
  void on_message(int node, MessageReader& message) override;
  bool look() override;
  bool awaits_messages() const override { return session_ && !is_ending_ && session_->awaits_messages(); }
  std::uint64_t answers() const override { return session_ ? session_->answers() : 0; }
  void on_node_lost(int, const Error&) noexcept override {}  // serve() asks the group
  void take(int node, MessageReader& message);
  void name_devices(MessageReader& message);
  void start(MessageReader& message);
  void end();
  bool finish_end();
  void give_up_session();
  void report_failure(std::uint64_t question, const Error& error);

  NodeGroup& group_;
  std::optional<SessionStart> start_;
  std::unique_ptr<NodeSession> session_;
  /// The agent stays awake for this long after it has done something.
  std::chrono::nanoseconds awake_for_ = os::WaitPolicy::for_nodes(1, os::usable_cores()).awake_for;
  bool is_ending_ = false;        // the workers were killed, and the master does not know it yet
  std::optional<Error> failure_;  // of this node
};

}  // namespace syncrun::detail::master::nodes
