#pragma once

// Runs a job on several nodes through an engine (`syncrun --launcher`): starts the engine, passes signals on, says how the
// job has ended, and starts it again after a failure.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/wait.hpp"
#include "master/command_line/conclusion.hpp"
#include "master/command_line/descendants.hpp"
#include "master/command_line/launch.hpp"
#include "master/command_line/options.hpp"
#include "master/command_line/output_relay.hpp"
#include "master/command_line/task_report.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::command_line {

/// The process must have one thread, and must not have blocked or handled any signal. What the engine prints goes
/// through here: the nodes' reports are a part of it, and lines stay whole if both streams go to one place.
///
///            a signal, or the engine does not return      5 s over
///   running ----------------------------------> ending -------------> killing
///      |                                          |                      |
///      +------------- the engine ended -----------+----------------------+---> over
///
/// A signal goes to the program in `running`, and the program decides. A second one ends the engine.
class LaunchedJob {
 public:
  LaunchedJob(const CommandOptions& options, Launch launch);

  /// Blocks until the engine has ended for good, and nothing that it has started here is left. Throws Error (system) if it
  /// could not be started.
  Conclusion run();

 private:
  enum class Stage { running, ending, killing, over };
  /// What is known of one start.
  struct Attempt {
    os::Clock::time_point began{};
    std::map<int, TaskReport> tasks;   // the last report of each
    std::vector<TaskReport> failures;  // in the order of their reports
    std::set<int> asked;               // tasks that a signal told to stop before anything had failed
    std::optional<int> wait_status;    // of the engine
    bool is_killed = false;            // because a task could not start the program
    std::string why_ended;             // why this process has ended the engine. Empty if it has not.
  };

  void take_signals();
  void run_once(int restart);
  void wait_for_events();
  void read_signals();
  bool read_streams();
  void take_text();
  void take_block(const Block& block);
  void take_line(const std::string& line);
  void write(int fd, std::string_view text);
  void write_rests();
  void take_report(const TaskReport& report);
  void pass_on(int signal);
  bool let_slurm_signal(const std::string& name);
  void ask_to_stop(int signal);
  void limit(std::chrono::milliseconds time);
  void advance();
  void end_engine(const std::string& why);
  void end_rest();
  void pause();
  bool has_ended(int task) const;
  bool others_have_ended() const;
  bool all_have_ended() const;
  Conclusion conclude_attempt() const;
  std::string describe_end() const;
  bool may_start_again(const Conclusion& conclusion, std::string& news);
  std::set<std::string> hosts_that_answer();
  bool replace_lost_hosts(std::string& news);
  std::span<const std::string> hosts_in_use() const;

  const CommandOptions& options_;
  Launch launch_;
  std::string token_ = make_token();
  Descendants descendants_;
  os::FileDescriptor signals_;
  os::FileDescriptor output_;  // the ends of pipes from which this process reads
  os::FileDescriptor errors_;
  std::string partial_;                                     // the beginning of a line
  std::map<std::pair<int, BlockKind>, std::string> rests_;  // of blocks, by task and kind: the beginnings of lines
  process::SpawnedProcess engine_;
  std::vector<pid_t> messengers_;  // that tell Slurm to send a signal
  Stage stage_ = Stage::running;
  Attempt attempt_;
  std::optional<os::Clock::time_point> deadline_;  // of the stage
  int first_signal_ = 0;                           // the first one that asked to stop
  os::Clock::time_point asked_at_{};
  bool was_asked_twice_ = false;
};

}  // namespace syncrun::detail::master::command_line
