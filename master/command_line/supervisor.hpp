#pragma once

// Runs a job. Starts the master, passes signals on, and leaves no process behind, no matter which process dies first.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/oom_watch.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/log.hpp"
#include "master/command_line/conclusion.hpp"
#include "master/command_line/descendants.hpp"
#include "master/command_line/options.hpp"
#include "master/nodes/engine.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::command_line {

struct Job {
  std::string program;               ///< Path of the image.
  std::vector<std::string> command;  ///< argv, with the name as written first.
  EnvironmentChanges environment;
  /// How long the program may take to end after a signal. If it is empty, a program that listens to stop requests, and one
  /// on several nodes, has no limit: their scheduler has one. Others have kUsualGrace.
  std::optional<std::chrono::milliseconds> grace;
  int max_restarts = 0;
  int restarts_before = 0;  ///< How often a script has run the program before.
  /// The engine that another `syncrun` has started for this job. It may send a signal in place of another.
  std::optional<nodes::EngineKind> launched_by = {};
  std::function<void()> when_asked = [] {};  ///< Called when a signal asks the program to stop.
  int node = 0;  ///< Of a job on several nodes. If it is not 0, the program is the agent of this node.
  /// In a job on several nodes: the other nodes have given up a master or an agent that was stopped for longer, so it is
  /// killed. 0 in a job on one node.
  std::chrono::milliseconds longest_stop{0};
};

/// Runs one job from start to end. The process must have one thread, and must not have blocked or handled any signal,
/// because the supervisor takes over all signals.
///
///            a signal asks to stop              grace over, or a second signal
///   running ------------------------> terminating ----------------------------> killing
///      |                                   |  the master and all others ended      |
///      |                                   +----------------> over <--------------+
///      +--------------------- the master ended ---------------------> killing      nothing is left
///
/// If a job has failed and no signal asked it to stop, it is started again from `over`. If it failed within a second,
/// it is started again after `pausing`.
class Supervisor {
 public:
  Supervisor(Job job, std::unique_ptr<text::Logger> logger);

  /// Blocks until nothing of the job is left, or until kLongestKill has passed after it sent SIGKILL to everything.
  /// Throws Error (system) if the program could not be started.
  Conclusion run();

 private:
  enum class Stage { running, terminating, killing, over, pausing };

  void take_signals();
  void run_once(int restart);
  bool can_be_started_again(const Conclusion& conclusion) const;
  void pause();
  void start_master(int restart);
  void watch(int fd);
  void watch_engine();
  void end_without_engine();

  void wait_for_events();
  void read_signals();
  void read_messages();
  void collect_ended();
  bool goes_on() const;
  void advance();

  void handle(const protocol::SupervisorMessage& message);
  void compare_versions(const std::string& librarys) const;
  void look_for_reasons();
  std::optional<std::chrono::milliseconds> grace() const;
  /// Who sent a signal.
  enum class SignalFrom : std::uint8_t { terminal, process };
  void handle_signal(int signal, SignalFrom from);
  void ask_to_stop(int signal, SignalFrom from);
  void suspend();
  void resume();

  void terminate_remaining();
  void start_killing(KillReason reason);
  void kill_remaining();

  bool master_is_alive() const noexcept { return !end_.wait_status; }
  void check_stop();
  bool is_over() const { return !master_is_alive() && !descendants_.are_left(); }
  void send_to_master(int signal) const;
  void send_to_groups(int signal) const;
  int wait_limit_ms() const;

  Job job_;
  std::unique_ptr<text::Logger> logger_;
  Descendants descendants_;
  os::FileDescriptor signals_;
  os::FileDescriptor link_;
  os::FileDescriptor events_;
  process::SpawnRequest::BrokenPipe broken_pipe_ = process::SpawnRequest::BrokenPipe::ends_it;
  process::SpawnedProcess master_;
  std::optional<os::OomWatch> oom_watch_;  // created before the master
  Stage stage_ = Stage::running;
  os::Clock::time_point started_{};
  os::Clock::time_point deadline_{};  // of `terminating`, `killing` and `pausing`; max(): none
  std::set<pid_t> groups_;            // of live workers and helpers, as the master has announced them
  bool had_workers_ = false;
  bool stops_by_itself_ = false;    // the program has called syncrun::stop_requested
  os::Clock::time_point ran_at_{};  // when the program was last seen not to be stopped
  std::set<pid_t> asked_;           // processes and groups that were sent SIGTERM after the master's end
  JobEnd end_;
  os::Clock::time_point asked_at_{};  // when `terminating` began
  int first_signal_ = 0;              // the first signal that asked to stop, in any stage
};

}  // namespace syncrun::detail::master::command_line
