#pragma once

// One run of the command `syncrun` under test: what it printed, how it ended, and which processes it has.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "common/file_descriptor.hpp"

namespace syncrun::test {

/// Looks until it holds, for at most 20 s. Returns whether it held.
bool eventually(const std::function<bool()>& holds);

/// 'R', 'S', 'T', 'Z', ... by proc(5); '-' for a process that is gone.
char state_of(pid_t pid);

struct Start {
  bool on_terminal = false;             ///< Standard input is a terminal of its own.
  bool ignores_sighup = false;          ///< As under nohup.
  std::function<void()> in_child = {};  ///< Called in the child, last before exec.
};

class CommandRun {
 public:
  /// Starts a command (by default `syncrun`) with these arguments, in a process group of its own. Whatever it
  /// starts can be told by a variable in its environment.
  explicit CommandRun(const std::vector<std::string>& arguments, Start start = {}, const std::string& image = "");
  /// Kills what is left.
  ~CommandRun();
  CommandRun(const CommandRun&) = delete;
  CommandRun& operator=(const CommandRun&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void send(int signal) const;
  void type(const std::string& keys) const;
  /// Closes the terminal, as its window would.
  void hang_up() { terminal_.reset(); }

  /// Blocks until the command ended and returns its exit code, or 1000 + the signal that killed it. After 20
  /// s it is killed, and the test fails.
  int exit_code();
  std::string output() const;
  std::string errors() const;
  std::string last_error_line() const;
  bool prints(const std::string& text) const;

  /// All living processes of this run.
  std::vector<pid_t> processes() const;
  bool nothing_remains() const;

 private:
  std::string mark_;
  detail::FileDescriptor output_;
  detail::FileDescriptor errors_;
  detail::FileDescriptor terminal_;
  pid_t pid_ = -1;
};

/// The scripted program's path.
std::string scripted_program();

}  // namespace syncrun::test
