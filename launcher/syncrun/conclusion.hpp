#pragma once

// What `syncrun` says and returns when everything is over: from what was seen to one exit code and the first
// cause.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace syncrun::detail {

/// Why everything was killed before it had ended by itself.
enum class KillReason { none, grace_over, second_signal };

/// What was seen of a job that is over.
struct JobEnd {
  std::string program;  ///< As written on the command line.
  pid_t master = -1;
  std::optional<int> wait_status;  ///< Of the master; nothing if it could not even be killed.
  bool said_hello = false;         ///< It called syncrun::run.
  bool is_privileged = false;      ///< Its file gives it more rights than who starts it: it ignores our variables.
  bool went_on = false;            ///< It ended well, and a copy of it (fork) went on with the job, as a daemon does.
  std::string verdict;             ///< The master's own account of its failure, if there was one.
  int stop_signal = 0;             ///< That asked `syncrun` to end the job, or 0.
  KillReason killed = KillReason::none;
  bool output_has_no_reader = false;  ///< Standard output or error is a pipe that nobody reads any more.
  std::chrono::milliseconds grace{};
};

struct Conclusion {
  int exit_code = 0;
  std::string message;  ///< Empty where all went well, or the program's reader (`head`) has seen enough.
};

Conclusion conclude(const JobEnd& end);

}  // namespace syncrun::detail
