// syncrun [options] program [arguments]: reads the command line and runs a supervisor.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/numbers.hpp"
#include "common/text/visible_text.hpp"
#include "launcher/devices/host_part.hpp"
#include "launcher/nodes/engine.hpp"
#include "launcher/syncrun/dry_run.hpp"
#include "launcher/syncrun/job_nodes.hpp"
#include "launcher/syncrun/options.hpp"
#include "launcher/syncrun/preparation.hpp"
#include "launcher/syncrun/supervisor.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail {
namespace {

int say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

std::chrono::milliseconds node_timeout(const CommandOptions& options) {
  constexpr double kUsualTimeout = 3;
  const double seconds = parse_number(options.node_timeout).value_or(kUsualTimeout);
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// How long `syncrun` stays after a failure, although its part of the job is over. An engine may end the whole job as soon
/// as one task has failed, and the other nodes could not say why it has.
std::chrono::milliseconds last_stay(const Conclusion& conclusion, int task, const CommandOptions& options) {
  constexpr std::chrono::milliseconds kTimeToSpeak{300};
  constexpr std::chrono::seconds kTimeToNotice{1};
  if (conclusion.exit_code == 0) return {};
  // Nobody tells the other nodes if this process was killed. They notice it by the silence.
  const bool is_silent = conclusion.exit_code > kSignalExit && (task != 0 || !conclusion.was_asked);
  return is_silent ? node_timeout(options) + kTimeToNotice : kTimeToSpeak;
}

/// Stays until the time is over, or until the engine ends this process.
void stay(std::chrono::milliseconds time) {
  if (time.count() == 0) return;
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::sigaddset(&signals, signal);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit{static_cast<time_t>(seconds.count()), std::chrono::nanoseconds(time - seconds).count()};
  static_cast<void>(::sigtimedwait(&signals, nullptr, &limit));
}

int run_program(const CommandOptions& options, const std::string& program) {
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);
  const auto level = options.log_level.empty() ? LogLevel::warning : *parse_log_level(options.log_level);
  const auto job = find_job(options, ::getenv);
  EnvironmentChanges changes = environment_for(options);
  add_job(changes, job, ::getenv);
  Supervisor supervisor({.program = program,
                         .command = options.command,
                         .environment = changes,
                         .grace = options.grace,
                         .max_restarts = options.max_restarts,
                         .restarts_before = options.restart,
                         .node = job ? job->task : 0,
                         .longest_stop = job ? node_timeout(options) : std::chrono::milliseconds(0)},
                        make_logger("syncrun", level));
  const Conclusion conclusion = supervisor.run();
  if (!conclusion.message.empty()) {
    // The message may contain the last lines of a worker.
    std::fprintf(stderr, "syncrun: %s\n", text_for(STDERR_FILENO, with_indented_lines(conclusion.message)).c_str());
  }
  if (job) stay(last_stay(conclusion, job->task, options));
  return conclusion.exit_code;
}

int command(int argc, char** argv) {
  using Action = CommandOptions::Action;
  const auto options = parse_command_line(argc, argv);
  if (options.action == Action::help) return say(help_text());
  if (options.action == Action::version) return say(std::string("syncrun ") + version() + "\n");
  if (!options.log_dir.empty()) check_log_dir(options.log_dir);
  const auto program = find_program(options.command.front());
  if (options.action == Action::dry_run) {
    const auto job = find_job(options, ::getenv);
    if (!job) return say(describe_start(options, program));
    return job->task != 0 ? 0 : say(describe_job(*job) + describe_start(options, program));
  }
  return run_program(options, program);
}

/// "node 2 (c): " in a job of several nodes. Else empty.
std::string name_of_node() noexcept {
  try {
    const Engine engine = find_engine(::getenv);
    return engine.has_others() ? "node " + std::to_string(engine.task) + " (" + own_host_name() + "): " : "";
  } catch (const std::exception&) {
    return {};  // the variables of the engine are not as they should be
  }
}

int fail(int code, const std::exception& error) {
  std::fprintf(stderr, "syncrun: %s%s\n", name_of_node().c_str(), error.what());
  return code;
}

int exit_code_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return kUsageExit;
  // The kernel refused a program that passed our checks: its interpreter is missing, its format is unknown, there are
  // too many processes, ...
  return kNotExecutableExit;
}

}  // namespace
}  // namespace syncrun::detail

int main(int argc, char** argv) {
  using namespace syncrun::detail;
  open_missing_standard_streams();
  try {
    return command(argc, argv);
  } catch (const CommandFailure& failure) {
    return fail(failure.exit_code, failure);
  } catch (const syncrun::Error& error) {
    return fail(exit_code_of(error), error);
  } catch (const std::exception& error) {
    return fail(1, error);
  }
}
