#pragma once

// The agent of a node other than the master's. It gives the master's commands to the workers of its node, and reports
// what they have done. It does not interpret commands: the workers are those of any session.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/node_exchange.hpp"
#include "master/nodes/node_moves.hpp"
#include "master/nodes/relay.hpp"
#include "master/nodes/remote_timelines.hpp"

namespace syncrun::detail::master::nodes {

class Agent {
 public:
  /// `control` and `segment` are those of this node. `exchange` and `moves` get the commands; they may be null in tests.
  /// `relay` sends the reports; if it is null, there is no tree of nodes, and `mailbox` sends them. Refers to the
  /// arguments as long as it lives.
  Agent(Mailbox& mailbox, const protocol::ControlBlock& control, const os::Segment& segment,
        NodeExchange* exchange = nullptr, NodeMoves* moves = nullptr, Relay* relay = nullptr);

  /// Handles a message of the kinds command and spoil. Throws Error (system).
  void take(MessageReader& message);
  /// Gives commands whose rows have come to the workers. Sends one message about the commands that ranks have finished
  /// since the last time. A rank that has finished waits a moment for the other ranks of this node. Returns false if there
  /// was nothing to do. Throws Error (system).
  bool report();
  /// Sends what report() holds back for the moment, too.
  bool report_all();
  /// Adds what a rank of this node has recorded for a profile since the last report about it.
  void put_timeline(MessageWriter& to, int rank) { timelines_.put(to, rank); }
  /// True if report() would send something.
  bool has_news() const noexcept;
  /// True if rows are under way. They come only if somebody calls report() often.
  bool awaits_rows() const noexcept { return !waiting_.empty(); }
  /// True once no rows are under way any more, for the end of the session. Commands no longer begin.
  bool has_all_rows();
  /// True if a rank has a command that it has not finished.
  bool is_busy() const noexcept;
  /// Lost workers are replaced, and all others have finished their commands. Those of the lost ones neither begin nor are
  /// they reported. Rows of such commands still arrive.
  void forget_unfinished() noexcept;

 private:
  /// A command whose rows are under way. Commands begin in the order in which they came.
  struct Waiting {
    std::optional<std::size_t> slot;  // empty if the command does not begin any more
    std::vector<Mailbox::Ticket> rows;
  };
  struct Given {
    std::uint64_t id;
    std::size_t slot;
  };
  void take_command(MessageReader& from);
  void take_spoil(MessageReader& from);
  bool begin_ready();
  void begin(std::size_t slot);
  static bool has_to_report(const std::deque<Given>& commands, std::uint64_t id) noexcept;
  const protocol::Outbox* reduced_outbox(const protocol::Command& command, int rank) const noexcept;
  bool is_over_here(const protocol::Command& command) const noexcept;
  enum class Wait { none, for_the_node };
  bool send_reports(Wait wait);
  void send_by_relay(std::vector<std::byte> message, std::vector<std::uint64_t> reported, Relay::Urgency urgency);

  Mailbox& mailbox_;
  const protocol::ControlBlock& control_;
  const os::Segment& segment_;
  NodeExchange* exchange_;
  NodeMoves* moves_;
  Relay* relay_;
  TimelineSender timelines_;
  std::deque<Waiting> waiting_;
  std::vector<std::deque<Given>> given_;             // by local rank: the commands that it has not finished
  std::optional<os::Clock::time_point> held_since_;  // if a report waits for other ranks
};

}  // namespace syncrun::detail::master::nodes
