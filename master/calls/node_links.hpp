#pragma once

// Lets the ranks that lead their nodes connect to each other, before the first command that needs it.

#include <string>

#include "common/os/wait.hpp"
#include "common/text/log.hpp"
#include "master/calls/system_commands.hpp"

namespace syncrun::detail::master::calls {

/// Used by the master's thread. If the ranks cannot connect, it warns once, and messages go through the master and the agents
/// for the rest of the session. After a failure in which a connection may have broken, and after a loss, the ranks connect
/// anew.
class NodeLinks {
 public:
  struct Options {
    bool are_allowed = true;
    std::string interface;           // the only network interface that is used; empty: any
    os::Milliseconds silence{5000};  // how long a connection may be silent while a rank waits for it
  };
  /// Refers to the commands and the logger as long as it lives.
  NodeLinks(SystemCommands& commands, text::Logger& logger, Options options)
      : commands_(commands), logger_(logger), options_(std::move(options)) {}

  /// A command with collectives of these ranks comes next. Connects the nodes if that is useful and no call is running: the
  /// master would wait for its end. Throws the error of a loss.
  void prepare(const protocol::RankSet& ranks);

 private:
  bool are_useful(const protocol::RankSet& ranks);
  bool is_a_call_running() const;
  void connect(const protocol::RankSet& leaders);

  SystemCommands& commands_;
  text::Logger& logger_;
  Options options_;
};

}  // namespace syncrun::detail::master::calls
