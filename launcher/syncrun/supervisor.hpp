#pragma once

// The running of a job: starts the master, passes signals on, and leaves no process behind, whoever dies
// first.

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/file_descriptor.hpp"
#include "common/log.hpp"
#include "common/supervisor_link.hpp"
#include "common/wait.hpp"
#include "launcher/spawn.hpp"
#include "launcher/syncrun/conclusion.hpp"
#include "launcher/syncrun/descendants.hpp"
#include "launcher/syncrun/options.hpp"

namespace syncrun::detail {

struct Job {
  std::string program;               ///< Path of the image.
  std::vector<std::string> command;  ///< argv, the name as written first.
  EnvironmentChanges environment;
  std::chrono::milliseconds grace{5000};
  int max_restarts = 0;
};

/// One job from start to end. Used by a process with one thread, which must not have blocked or handled any
/// signal: all of them are taken over.
///
///            a signal asks to stop              grace over, or a second signal
///   running ------------------------> terminating ----------------------------> killing
///      |                                   |  the master and all others ended      |
///      |                                   +----------------> over <--------------+
///      +--------------------- the master ended ---------------------> killing      nothing is left
///
/// A job that failed, and that nobody asked to stop, is started again from `over`, after `pausing` if it failed at once.
class Supervisor {
 public:
  Supervisor(Job job, std::unique_ptr<Logger> logger);

  /// Blocks until nothing of the job is left, at most kLongestKill after everything was sent SIGKILL. Throws
  /// Error (system) if the program could not be started.
  Conclusion run();

 private:
  enum class Stage { running, terminating, killing, over, pausing };

  void take_signals();
  void run_once(int restart);
  bool can_be_started_again(const Conclusion& conclusion) const;
  void pause();
  void start_master(int restart);
  void watch(int fd);

  void wait_for_events();
  void read_signals();
  void read_messages();
  void collect_ended();
  bool goes_on() const;
  void advance();

  void handle(const SupervisorMessage& message);
  void handle_signal(int signal, bool from_terminal);
  void ask_to_stop(int signal, bool from_terminal);
  void suspend();
  void resume();

  void terminate_remaining();
  void start_killing(KillReason reason);
  void kill_remaining();

  bool master_is_alive() const noexcept { return !end_.wait_status; }
  bool is_over() const { return !master_is_alive() && !descendants_.are_left(); }
  void send_to_master(int signal) const;
  void send_to_groups(int signal) const;
  int wait_limit_ms() const;

  Job job_;
  std::unique_ptr<Logger> logger_;
  Descendants descendants_;
  FileDescriptor signals_;
  FileDescriptor link_;
  FileDescriptor events_;
  SpawnRequest::BrokenPipe broken_pipe_ = SpawnRequest::BrokenPipe::ends_it;
  SpawnedProcess master_;
  Stage stage_ = Stage::running;
  Clock::time_point started_{};
  Clock::time_point deadline_{};  // of `terminating`, `killing` and `pausing`
  std::set<pid_t> groups_;        // of live workers, as announced
  bool had_workers_ = false;
  std::set<pid_t> asked_;  // sent SIGTERM after the master's end
  JobEnd end_;
  int first_signal_ = 0;  // that asked to stop, whatever was going on
};

}  // namespace syncrun::detail
