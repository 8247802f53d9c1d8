#pragma once

// Lets the ranks that lead their nodes connect to each other, before the first command that needs it.

#include <string>

#include "common/os/wait.hpp"
#include "common/text/log.hpp"
#include "master/calls/system_commands.hpp"

namespace syncrun::detail::master::calls {

/// Used by the master's thread. The ranks connect again after a failure in which a connection may have broken, and after a
/// loss. If they fail to connect twice in a row, a warning says why. From then on, messages go through the master and the
/// agents.
class NodeLinks {
 public:
  /// `interface` is the only network interface that is used, or empty. `silence` is how long a connection may be silent while a
  /// rank waits for it. Refers to the commands and the logger as long as it lives.
  NodeLinks(SystemCommands& commands, text::Logger& logger, std::string interface, os::Milliseconds silence);

  /// A command with collectives of these ranks comes next. Connects them if they are the first ranks of all nodes, the session
  /// has no GPUs, and no call is running: the master would wait for its end. Throws the error of a loss.
  void prepare(const protocol::RankSet& ranks);

 private:
  static constexpr int kTries = 2;
  bool is_a_call_running() const;
  std::string connect();

  SystemCommands& commands_;
  text::Logger& logger_;
  std::string interface_;
  os::Milliseconds silence_;
  protocol::RankSet leaders_;
  int tries_left_;
};

}  // namespace syncrun::detail::master::calls
