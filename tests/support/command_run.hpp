#pragma once

// One run of a program under test, by default of the command `syncrun`. Tests ask it what the program printed, how it
// ended, and which processes it has.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/os/file_descriptor.hpp"

namespace syncrun::test {

inline constexpr std::chrono::seconds kUsualLimit{20};

/// Checks the condition again and again until the limit. Returns whether it became true.
bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit = kUsualLimit);

/// The state of a process as in proc(5): 'R', 'S', 'T', 'Z', ...; '-' if the process does not exist.
char state_of(pid_t pid);

struct Start {
  bool on_terminal = false;             ///< Standard input is a new terminal.
  bool ignores_sighup = false;          ///< The command ignores SIGHUP, as under nohup.
  std::function<void()> in_child = {};  ///< Called in the child, right before exec.
};

class CommandRun {
 public:
  /// Starts a command (by default `syncrun`) with these arguments, in a new process group. A variable in the
  /// environment identifies the processes of this run.
  explicit CommandRun(const std::vector<std::string>& arguments, const Start& start = {},
                      const std::string& image = "");
  /// Kills the processes that are left.
  ~CommandRun();
  CommandRun(const CommandRun&) = delete;
  CommandRun& operator=(const CommandRun&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void send(int signal) const;
  void type(const std::string& keys) const;
  /// Closes the terminal, as when its window is closed.
  void hang_up() { terminal_.reset(); }

  /// Blocks until the command has ended. Returns its exit code, or 1000 + the number of the signal that killed it.
  /// After the limit, the command is killed and the test fails.
  int exit_code(std::chrono::seconds limit = kUsualLimit);
  /// Fails the test unless the command ends with this code and leaves no process.
  void expect_end(int code);
  std::string output() const;
  std::string errors() const;
  std::string last_error_line() const;
  bool prints(const std::string& text) const;

  /// All processes of this run that exist now.
  std::vector<pid_t> processes() const;
  bool nothing_remains() const;

 private:
  std::string mark_;
  detail::os::FileDescriptor output_;
  detail::os::FileDescriptor errors_;
  detail::os::FileDescriptor terminal_;
  pid_t pid_ = -1;
};

struct CommandResult {
  int exit_code = -1;  // -1: killed by a signal
  std::string output;  // standard output
  std::string errors;  // standard error
};

/// Runs a program to its end, which may take as long as a test may compute. `command` is the path of the program and its
/// arguments.
CommandResult run_command(const std::vector<std::string>& command);

/// The path of the scripted program.
std::string scripted_program();

}  // namespace syncrun::test
