#pragma once

// What the `syncrun` on each node tells the `syncrun` that has started the engine: that it has begun, that a signal has
// told it to stop, and how its part of the job has ended. The only way between the two that each engine offers is
// standard error. So a report is a line there, which the reader takes out. An engine may put text before the line.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "master/command_line/conclusion.hpp"
#include "master/command_line/output_relay.hpp"

namespace syncrun::detail::master::command_line {

/// The first word of a command line that another `syncrun` has written. The token of its reports follows, and then the
/// usual options.
/// The beginning of each report.
inline constexpr std::string_view kLaunchedMark = "syncrun-task ";
inline constexpr const char* kLaunchedTask = "launched-task";

struct TaskReport {
  enum class Kind { began, asked, ended };
  Kind kind = Kind::began;
  int task = 0;
  std::string host = {};  ///< Where the task runs.
  std::string job = {};   ///< The engine's name for the job. Empty if it has none.
  // Of `ended`:
  int exit_code = 0;
  std::string message = {};          ///< Why it has failed. Empty if it has not, or if nobody has to read it.
  bool may_restart = false;          ///< See Conclusion.
  bool was_asked = false;            ///< The same.
  bool was_started = true;           ///< The same.
  std::chrono::milliseconds stay{};  ///< The process stays for this long after its report.
};

/// The line, with its newline. `token` distinguishes it from everything that a program prints.
std::string report_line(const std::string& token, const TaskReport& report);

/// The report in a line. Empty if the line has none.
std::optional<TaskReport> report_in(std::string_view line, const std::string& token);

/// A token that no other job has.
std::string make_token();

/// The task's side: writes reports to standard error.
class TaskReporter {
 public:
  /// Reports that this task has begun. An engine has started it.
  explicit TaskReporter(const std::string& token);
  /// Reports that a signal has told this task to stop. Leaves the report out if it would have to wait for the reader.
  void asked() const;
  void ended(const Conclusion& conclusion, std::chrono::milliseconds stay) const;

 private:
  void write(const TaskReport& report) const;

  std::string token_;
  TaskReport own_;
  mutable std::optional<OutputRelay> relay_;  // if the engine would cut lines
};

}  // namespace syncrun::detail::master::command_line
