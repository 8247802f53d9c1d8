#pragma once

// The result of `syncrun` when the job is over: one exit code, and a message with the first cause.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "common/protocol/supervisor_link.hpp"

namespace syncrun::detail::master::command_line {

/// Why `syncrun` killed everything before it had ended by itself.
enum class KillReason { none, grace_over, second_signal };

/// The observations of `syncrun` about a job that is over.
struct JobEnd {
  std::string program;              ///< As written on the command line.
  std::string role = "the master";  ///< What the program is in the job.
  pid_t master = -1;
  std::optional<int> wait_status;  ///< Wait status of the master. Empty if the master could not even be killed.
  bool said_hello = false;         ///< The master has called syncrun::run or syncrun::serve_if_worker.
  std::string needed_library;      ///< The name of Syncrun's library in a program that the loader may not have loaded.
  std::string library_folder;      ///< The folder of a library of this name, if it is known.
  std::string kill_hint;           ///< Why the master may have been killed (OomWatch). Empty if that is not known.
  /// Its file has more rights than the user who starts it, so it ignores our variables.
  bool is_privileged = false;
  bool went_on = false;                ///< It ended well, but a forked copy of it continues the job, as a daemon does.
  protocol::FailureDetails details{};  ///< What the master knows of the error besides the message.
  std::string verdict;                 ///< The master's own message about its failure. Empty if it has sent no message.
  std::string notes;                   ///< Other faults, each after a newline.
  int stop_signal = 0;                 ///< The signal that asked `syncrun` to end the job, or 0.
  KillReason killed = KillReason::none;
  bool output_has_no_reader = false;  ///< Standard output or error is a pipe without a reader.
  std::chrono::milliseconds grace{};
};

struct Conclusion {
  int exit_code = 0;
  std::string message;      ///< Empty if all went well, or if the reader of the output (`head`) has stopped reading.
  bool was_asked = false;   ///< A signal to `syncrun` asked the job to end.
  bool was_started = true;  ///< False if the program is not there, or cannot be executed.
  protocol::FailureDetails details{};
  bool was_killed = false;            ///< A signal has ended the program. Its exit code may be above 128 without one.
  bool may_be_started_again = false;  ///< It has failed, and the result may differ next time.
};

Conclusion conclude(const JobEnd& end);

}  // namespace syncrun::detail::master::command_line
