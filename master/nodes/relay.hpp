#pragma once

// Relays: in a job of many nodes, messages of the master travel along a tree of nodes, and those of the agents travel
// back. The master then sends and receives as many messages as it has children, and not one for each node.
//
//   master                                        agent of each other node
//   RemoteNodes --> RelayRoot ---- bundle ----> Relay --> Agent, and to the children
//                             <--- reports ----       <-- Agent, and from the children
//
// The tree ends when a node is lost. From then on all messages go directly between the master and each agent.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/os/wait.hpp"
#include "master/nodes/bundle.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/node_tree.hpp"

namespace syncrun::detail::master::nodes {

/// On the master's node. Any thread may send.
class RelayRoot {
 public:
  /// `sender` sends bundles, reports and, after the end of the tree, all messages to the named node itself.
  RelayRoot(Sender& sender, const NodeTree& tree) : sender_(sender), branches_(tree.branches(0)) {}

  /// Sends each node its message. Throws Error (system).
  void send(const Bundle& bundle);
  void send(int node, std::vector<std::byte> message);
  /// The tree ends here. Returns false if it had ended before.
  bool end_tree() noexcept { return !has_ended_.exchange(true, std::memory_order_seq_cst); }
  bool has_tree() const noexcept { return !has_ended_.load(std::memory_order_seq_cst); }

 private:
  Sender& sender_;
  std::vector<NodeTree::Branch> branches_;
  std::atomic<bool> has_ended_ = false;
};

/// Calls `visit(node, bytes)` for each message in one of the kind reports. Throws Error (system) if it cannot be read.
template <class Visit>
void for_each_report(MessageReader& message, Visit&& visit) {
  static_cast<void>(message.get<bool>());  // whether it was urgent
  static_cast<void>(message.get_list<std::uint64_t>());
  while (!message.is_at_end()) {
    const auto node = message.get<std::int32_t>();
    visit(int{node}, message.get_bytes(message.get<std::uint64_t>()));
  }
}

/// On the node of an agent. One thread uses it.
class Relay {
 public:
  /// How long, and up to how many bytes, reports of commands wait for those of other nodes of the branch.
  static constexpr std::chrono::microseconds kLongestHold{200};
  static constexpr std::size_t kMostHeld = std::size_t{64} << 10U;
  enum class Urgency { may_wait, at_once };

  /// `sender` sends bundles, reports and, after the end of the tree, all messages to the named node itself.
  Relay(Sender& sender, const NodeTree& tree, int node);

  /// The children and the parent of this node.
  std::vector<int> neighbours() const;

  /// A message of the kind bundle. First passes on what is for the nodes below. Returns the message for this node, if
  /// there is one. Throws Error (system).
  std::optional<std::vector<std::byte>> take_bundle(MessageReader& message);
  /// A message of the kind reports, from a child. Throws Error (system).
  void take_reports(MessageReader& message);

  /// Sends a message of this node to the master, and before it everything that waits.
  void send(std::vector<std::byte> message);
  /// Sends a message of this node that reports commands. `over` are those that all ranks of this node have now reported.
  void report(std::vector<std::byte> message, std::span<const std::uint64_t> over, Urgency urgency);
  /// Sends what has waited for too long. Returns false if there was nothing to send.
  bool look(os::Clock::time_point now);

  /// A session begins on this node. Its commands have numbers from 1 again.
  void begin_session() noexcept { open_.clear(); }
  /// Lost workers are replaced. The commands up to this one were given up, and are not reported any more.
  void forget(std::uint64_t last);
  /// The tree has ended. Sends everything that waits directly to the master, and so everything that comes later.
  void end_tree();

 private:
  void add(int node, std::span<const std::byte> message);
  void finish(std::uint64_t id);
  void send_if_due(Urgency urgency);
  void send_reports(Urgency urgency);

  Sender& sender_;
  int node_;
  int parent_;
  std::vector<NodeTree::Branch> branches_;
  std::map<std::uint64_t, int> open_;  // by command: in how many parts of this branch it is not over
  std::vector<std::uint64_t> over_;    // commands of which the parent has to hear
  std::vector<std::byte> waiting_;     // messages, each with its node and its size
  std::optional<os::Clock::time_point> waiting_since_;
};

}  // namespace syncrun::detail::master::nodes
