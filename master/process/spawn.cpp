#include "master/process/spawn.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/process/child.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/extend.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <system_error>

#include "common/os/core_set.hpp"
#include "common/os/stop_signals.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::process {

namespace process = boost::process;

namespace {

using Strings = std::vector<std::string>;

constexpr const char* kOomScore = "/proc/self/oom_score_adj";

bool is_named(const std::string& variable, const std::string& name) {
  return variable.size() > name.size() && variable.starts_with(name) && variable[name.size()] == '=';
}

/// "NAME=value" lines. (Boost 1.74's own environment class compares past the end of short variables.)
Strings child_environment(const SpawnRequest& request) {
  Strings variables;
  for (char** present = ::environ; *present != nullptr; ++present) {
    const std::string variable = *present;
    const auto is_this = [&](const std::string& name) { return is_named(variable, name); };
    const auto replaces_this = [&](const auto& added) { return is_named(variable, added.first); };
    if (std::any_of(request.unset.begin(), request.unset.end(), is_this)) continue;
    if (std::any_of(request.environment.begin(), request.environment.end(), replaces_this)) continue;
    variables.push_back(variable);
  }
  for (const auto& [name, value] : request.environment) variables.push_back(name + "=" + value);
  return variables;
}

/// Pointers in the form that exec requires: to mutable characters, which exec does not change.
std::vector<char*> pointers_to(const Strings& strings) {
  std::vector<char*> pointers;
  for (const auto& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The steps of a child before exec. The message names the step that the system refused (a seccomp filter, a full
/// table).
enum class Step : std::uint8_t { none, death_signal, group, signals, streams, descriptors };
constexpr int kStepShift = 16;  // an errno is smaller

std::string_view call_of(Step step) {
  switch (step) {
    case Step::none: break;
    case Step::death_signal: return "prctl(PR_SET_PDEATHSIG)";
    case Step::group: return "setpgid(0, 0)";
    case Step::signals: return "sigprocmask";
    case Step::streams: return "dup2";
    case Step::descriptors: return "fcntl(F_SETFD)";
  }
  return "";
}

/// `code` has errno in its lower bits and the Step that failed above them.
[[noreturn]] void throw_not_started(const std::string& program, int code) {
  const auto step = static_cast<Step>(code >> kStepShift);
  const int number = code & ((1 << kStepShift) - 1);
  if (step == Step::none) text::throw_no_process("cannot start " + program, number);
  text::throw_errno("cannot start " + program + ": the system refuses its process " + std::string(call_of(step)),
                    number);
}

/// The steps of the child between fork and exec. They make system calls only, since another thread of the parent may
/// have held any lock at the time of the fork.
struct InChild : process::extend::handler {
  InChild(const SpawnRequest& wanted, const Strings& environment)
      : request(&wanted),
        parent(::getpid()),
        argv(pointers_to(wanted.arguments)),
        variables(pointers_to(environment)),
        cores(wanted.cores),
        memory_nodes(wanted.memory_node ? std::vector<int>{*wanted.memory_node} : std::vector<int>{}) {
    if (request->dies_earlier_by != 0) oom_score = oom_score_after(request->dies_earlier_by);
  }

  template <class Executor>
  void on_exec_setup(Executor& executor) const {
    executor.cmd_line = argv.data();  // Boost would use the path of the image as the name
    executor.env = const_cast<char**>(variables.data());
    const auto require = [&executor](int result, Step step) {
      if (result < 0) fail(executor, step);
    };
    require(::prctl(PR_SET_PDEATHSIG, SIGKILL), Step::death_signal);
    if (::getppid() != parent) ::_exit(kCannotStart);  // the parent died before that took effect
    if (request->leads_group) require(::setpgid(0, 0), Step::group);
    // Ignored signals are inherited through exec. The child does not inherit two that code commonly relies on. A write
    // to a closed pipe ends the child, unless the request says otherwise. system() sees its own children end. SIGHUP
    // and SIGINT stay as they are (nohup).
    ::signal(SIGPIPE, request->broken_pipe == SpawnRequest::BrokenPipe::is_ignored ? SIG_IGN : SIG_DFL);
    ::signal(SIGCHLD, SIG_DFL);
    sigset_t held;  // the mask is inherited too
    ::sigemptyset(&held);
    if (request->holds_stop_signals) {
      for (const int signal : os::kStopSignals) ::sigaddset(&held, signal);
    }
    require(::sigprocmask(SIG_SETMASK, &held, nullptr), Step::signals);
    // Failure is allowed: the cores may have been taken from us since they were listed, and the kernel then chooses
    // others.
    if (!request->cores.empty()) static_cast<void>(cores.bind());
    // Here too: a sandbox may refuse it. Memory then comes from the node of the core that first writes to it.
    if (request->memory_node)
      ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, memory_nodes.bits(), 8 * memory_nodes.bytes() + 1);
    // A policy that the user has chosen stays. Failure is allowed: the child is only less considerate then.
    const sched_param no_priority{};
    if (request->waits_for_turn && ::sched_getscheduler(0) == SCHED_OTHER)
      static_cast<void>(::sched_setscheduler(0, SCHED_BATCH, &no_priority));
    if (!oom_score.empty()) write_oom_score();
    if (!request->reads_input) {
      const int nothing = ::open("/dev/null", O_RDONLY);
      require(nothing, Step::streams);
      if (nothing != STDIN_FILENO) {
        require(::dup2(nothing, STDIN_FILENO), Step::streams);
        ::close(nothing);
      }
    }
    if (request->standard_output >= 0) require(::dup2(request->standard_output, STDOUT_FILENO), Step::streams);
    if (request->standard_error >= 0) require(::dup2(request->standard_error, STDERR_FILENO), Step::streams);
    for (const int fd : request->inherited) require(::fcntl(fd, F_SETFD, 0), Step::descriptors);
  }

  /// Failure is allowed: the kernel may then kill the parent first.
  void write_oom_score() const {
    const int file = ::open(kOomScore, O_WRONLY);
    if (file < 0) return;
    [[maybe_unused]] const auto written = ::write(file, oom_score.data(), oom_score.size());
    ::close(file);
  }

  /// If a step fails, the child ends before exec. The parent learns of it in the same way as of an exec that failed: by
  /// a number in Boost's pipe. Here the number also contains the step, above errno.
  static constexpr int kCannotStart = 127;
  template <class Executor>
  [[noreturn]] static void fail(Executor& executor, Step step) {
    executor.set_error(std::error_code(errno | static_cast<int>(step) << kStepShift, std::system_category()), "step");
    ::_exit(kCannotStart);
  }

  /// Runs in the parent. Boost 1.74 leaves a child that could not exec as a zombie.
  template <class Executor>
  void on_error(Executor& executor, const std::error_code&) const {
    if (executor.pid > 0) ::waitpid(executor.pid, nullptr, 0);
  }

  const SpawnRequest* request;
  pid_t parent;
  std::vector<char*> argv;
  std::vector<char*> variables;
  os::CoreSet cores;
  os::CoreSet memory_nodes;  // the kernel takes sets of nodes in the same form
  std::string oom_score;
};

}  // namespace

std::string oom_score_after(int thousandths) {
  constexpr int kMost = 1000;
  int own = 0;
  if (!(std::ifstream(kOomScore) >> own)) return {};
  return std::to_string(std::min(own + thousandths, kMost));
}

SpawnedProcess spawn(const SpawnRequest& request) {
  const Strings variables = child_environment(request);
  const InChild in_child(request, variables);
  std::error_code error;
  errno = 0;
  process::child child(process::exe = request.program, error, in_child);
  if (error) throw_not_started(request.program, error.value());
  // Boost 1.74 reports no error if its own pipe fails (no descriptor left), and returns pid -1. kill(2) takes -1 to
  // mean all processes.
  if (child.id() <= 0) text::throw_no_process("cannot start " + request.program, errno != 0 ? errno : EAGAIN);
  SpawnedProcess spawned;
  spawned.pid = child.id();
  child.detach();  // from here on, the caller reaps the child
  spawned.pidfd = os::FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, spawned.pid, 0)));
  // A sandbox may forbid system calls that it does not know.
  if (!spawned.pidfd.is_open() && errno != ENOSYS && errno != EPERM) {
    const int code = errno;
    ::kill(spawned.pid, SIGKILL);
    ::waitpid(spawned.pid, nullptr, 0);
    text::throw_errno("pidfd_open", code);
  }
  return spawned;
}

std::string describe_status(int wait_status) {
  if (wait_status == kUnknownStatus) return "died; how is not known, since the program ignores SIGCHLD or reaped it";
  if (WIFEXITED(wait_status)) return "exited with code " + std::to_string(WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) return "killed by " + text::signal_name(WTERMSIG(wait_status));
  return "ended with wait status " + std::to_string(wait_status);
}

}  // namespace syncrun::detail::master::process
