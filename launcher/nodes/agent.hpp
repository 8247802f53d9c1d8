#pragma once

// The agent of a node other than the master's. It gives the master's commands to the workers of its node, and reports
// what they have done. It does not interpret commands: the workers are those of any session.

#include <cstdint>
#include <deque>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "launcher/nodes/mailbox.hpp"
#include "launcher/nodes/messages.hpp"

namespace syncrun::detail {

class Agent {
 public:
  static constexpr int kMaster = 0;  // the master's node

  /// `control` and `segment` are those of this node. Refers to the arguments as long as it lives.
  Agent(Mailbox& mailbox, const ControlBlock& control, const Segment& segment);

  /// Handles a message of the kinds command and spoil. Throws Error (system).
  void take(MessageReader& message);
  /// Sends one message about all commands that ranks have finished since the last time. Returns false if there are none.
  /// Throws Error (system).
  bool report();
  /// True once the command that closes the session was published.
  bool is_closing() const noexcept { return is_closing_; }
  /// True if report() would send something.
  bool has_news() const noexcept;
  /// True if a rank has a command that it has not finished.
  bool is_busy() const noexcept;

 private:
  struct Given {
    std::uint64_t id;
    std::size_t slot;
  };
  void take_command(MessageReader& from);
  void take_spoil(MessageReader& from);

  Mailbox& mailbox_;
  const ControlBlock& control_;
  const Segment& segment_;
  std::vector<std::deque<Given>> given_;  // by local rank: the commands that it has not finished
  bool is_closing_ = false;
};

}  // namespace syncrun::detail
