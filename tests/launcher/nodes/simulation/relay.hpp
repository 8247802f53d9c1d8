#pragma once

// Relays: the commands of the master travel along a tree of nodes, and the reports of the agents travel back. The
// master then sends and receives as many messages as it has children, and not one for each node.
//
//   master                                          agent of each other node
//   RemoteNodes --> RelayRoot --commands--> Relay --> Agent, and to the children
//                       <------reports----    <---- Agent, and from the children
//
// Both are mailboxes, so RemoteNodes and Agent do not know of the tree. A product needs more than this:
// - signs of life along the tree, and what happens if a node inside the tree is lost;
// - the other messages keep their order with commands (spoil) and reports (rank_lost), which take another way here;
// - a failure does not wait for other nodes.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/os/wait.hpp"
#include "launcher/nodes/mailbox.hpp"
#include "launcher/nodes/messages.hpp"
#include "tests/launcher/nodes/simulation/node_tree.hpp"

namespace syncrun::test {

/// A command, with its number, and what each node of a branch gets.
inline constexpr auto kRelayedCommand = static_cast<detail::MessageKind>(128);
/// Which commands are over in the whole branch since the last time, and the contents of messages of the kind done.
inline constexpr auto kRelayedReports = static_cast<detail::MessageKind>(129);

/// Bulk goes directly from node to node.
class RelayingMailbox : public detail::Mailbox {
 public:
  explicit RelayingMailbox(detail::Mailbox& mailbox) : mailbox_(mailbox) {}
  std::optional<Received> receive() override { return mailbox_.receive(); }
  Ticket send_bulk(int node, std::span<const std::byte> from) override { return mailbox_.send_bulk(node, from); }
  Ticket receive_bulk(int node, std::span<std::byte> to) override { return mailbox_.receive_bulk(node, to); }
  bool is_over(Ticket ticket) override { return mailbox_.is_over(ticket); }

 protected:
  detail::Mailbox& mailbox() noexcept { return mailbox_; }

 private:
  detail::Mailbox& mailbox_;
};

/// On the master's node.
class RelayRoot final : public RelayingMailbox {
 public:
  RelayRoot(detail::Mailbox& mailbox, const NodeTree& tree) : RelayingMailbox(mailbox), branches_(tree.branches(0)) {}

  /// Keeps a command for a node until send_command(). Sends other messages directly.
  void send(int node, std::vector<std::byte> message) override;
  /// Sends the command with this number to the children. Throws Error (system).
  void send_command(std::uint64_t id);
  /// A message of the kind kRelayedReports. Afterwards, RemoteNodes::take_done() can read the message on.
  static void begin_reports(detail::MessageReader& message) { static_cast<void>(message.get_list<std::uint64_t>()); }

 private:
  std::vector<NodeTree::Branch> branches_;
  std::vector<std::pair<int, std::vector<std::byte>>> commands_;
};

/// On the node of an agent. One thread uses it.
class Relay final : public RelayingMailbox {
 public:
  /// How long reports wait for those of other nodes of the branch.
  static constexpr std::chrono::microseconds kLongestHold{200};
  struct Command {
    std::uint64_t id;
    std::vector<std::byte> message;  // of the kind command, for the agent
  };

  Relay(detail::Mailbox& mailbox, const NodeTree& tree, int node);

  /// Keeps a report of the agent until report(). Sends other messages directly.
  void send(int node, std::vector<std::byte> message) override;
  /// A message of the kind kRelayedCommand from the parent. First passes on what is for the children. Returns what is
  /// for this node, if anything. Throws Error (system).
  std::optional<Command> take_command(detail::MessageReader& message);
  /// A message of the kind kRelayedReports from a child. Throws Error (system).
  void take_reports(detail::MessageReader& message);
  /// The agent has reported this command for all ranks of this node. Throws Error (system).
  void finish(std::uint64_t id);
  /// Sends all reports to the parent, as soon as a command is over in the whole branch. Reports that have waited for
  /// too long are sent before that. Returns false if there was nothing to send.
  bool report(detail::Clock::time_point now);

 private:
  int parent_;
  std::vector<NodeTree::Branch> parts_;  // this node alone, and the branches of its children
  std::map<std::uint64_t, int> open_;    // by command: in how many parts it is not over
  std::vector<std::uint64_t> over_;      // commands of which the parent has to hear
  std::vector<std::byte> reports_;
  std::optional<detail::Clock::time_point> held_since_;
};

}  // namespace syncrun::test
