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

  /// Handles the messages that have arrived, and reports the commands that ranks have finished. Returns false if there
  /// was nothing to do. Throws Error (system).
  bool progress();
  /// True once the command that closes the session was published.
  bool is_closing() const noexcept { return is_closing_; }
  /// True if a rank has a command that it has not finished.
  bool is_busy() const noexcept;

 private:
  struct Given {
    std::uint64_t id;
    std::size_t slot;
  };
  void take_command(MessageReader& from);
  void take_spoil(MessageReader& from);
  bool report();

  Mailbox& mailbox_;
  const ControlBlock& control_;
  const Segment& segment_;
  std::vector<std::deque<Given>> given_;  // by local rank: the commands that it has not finished
  bool is_closing_ = false;
};

}  // namespace syncrun::detail
