// syncrun [options] program [arguments]: reads the command line and runs a supervisor.

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "common/os/environment.hpp"
#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/numbers.hpp"
#include "master/command_line/dry_run.hpp"
#include "master/command_line/help.hpp"
#include "master/command_line/job_files.hpp"
#include "master/command_line/job_nodes.hpp"
#include "master/command_line/launch.hpp"
#include "master/command_line/launched_job.hpp"
#include "master/command_line/options.hpp"
#include "master/command_line/preparation.hpp"
#include "master/command_line/subcommands.hpp"
#include "master/command_line/supervisor.hpp"
#include "master/command_line/task_report.hpp"
#include "master/devices/host_part.hpp"
#include "master/nodes/engine.hpp"
#include "master/wrappers/wrappers.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::command_line {
namespace {

std::chrono::milliseconds node_timeout(const CommandOptions& options) {
  constexpr double kUsualTimeout = 3;
  const double given = text::parse_number(options.effective(environment::kNodeTimeout)).value_or(kUsualTimeout);
  const double seconds = given >= 0.5 && given <= 1e6 ? given : kUsualTimeout;  // the program refuses others
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

constexpr std::chrono::milliseconds kTimeToSpeak{300};
/// If a task of srun cannot start the program, the `syncrun` that has called srun kills all tasks at once. But srun waits for
/// the others if this task has ended before.
constexpr std::chrono::milliseconds kTimeToBeKilled{5000};

/// How long `syncrun` stays after a failure, although its part of the job is over. An engine may end the whole job as soon
/// as one task has failed, and the other nodes could not say why it has.
std::chrono::milliseconds last_stay(const Conclusion& conclusion, int task, const CommandOptions& options) {
  constexpr std::chrono::seconds kTimeToNotice{1};
  if (conclusion.exit_code == 0) return {};
  // Nobody tells the other nodes if this process was killed. They notice it by the silence.
  const bool is_silent = conclusion.was_killed && (task != 0 || !conclusion.was_asked);
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

/// Where a part of the job says how it has ended: on standard error, or to the `syncrun` that has started the engine.
class LastWord {
 public:
  explicit LastWord(const TaskReporter* reporter = nullptr) : reporter_(reporter) {}
  void say(const Conclusion& conclusion, std::chrono::milliseconds stay = {}) const {
    if (reporter_ != nullptr) reporter_->ended(conclusion, stay);
    else if (!conclusion.message.empty())
      std::fputs(text::own_line(LogLevel::error, conclusion.message).c_str(), stderr);
  }
  void tell_asked() const {
    if (reporter_ != nullptr) reporter_->asked();
  }
  bool is_launched() const noexcept { return reporter_ != nullptr; }

 private:
  const TaskReporter* reporter_;
};

/// The reason of the job's failure stays the last line, and decides the exit code.
void write_error_file(ErrorFile& file, const Conclusion& conclusion) {
  try {
    file.conclude(conclusion);
  } catch (const Error& error) {
    std::fputs(text::own_line(LogLevel::warning, error.what()).c_str(), stderr);
  }
}

int run_program(const CommandOptions& options, const std::string& program, const std::optional<nodes::Engine>& job,
                ErrorFile& error_file, const LastWord& last_word) {
  if (const std::string folder = options.value_of(environment::kLogDir); !folder.empty()) make_log_dir(folder);
  const PidFile pid_file(options.pid_file, job ? job->task : 0);
  const auto level = text::parse_log_level(options.effective(environment::kLogLevel)).value_or(LogLevel::warning);
  // On several nodes, each node needs the wrappers of its own ranks only. It checks them when it knows its ranks.
  if (!job) wrappers::Wrappers::read(options.value_of(environment::kWrap), "").check_programs();
  EnvironmentChanges changes = environment_for(options);
  add_job(changes, job, ::getenv);
  Supervisor supervisor(
      {.program = program,
       .command = options.command,
       .environment = changes,
       .grace = options.grace,
       .max_restarts = options.max_restarts,
       .restarts_before = options.restart,
       .launched_by = last_word.is_launched() ? std::optional(nodes::find_engine(::getenv).kind) : std::nullopt,
       .when_asked = [&last_word] { last_word.tell_asked(); },
       .node = job ? job->task : 0,
       .longest_stop = job ? node_timeout(options) : std::chrono::milliseconds(0)},
      text::make_logger("syncrun", level));
  const Conclusion conclusion = supervisor.run();
  write_error_file(error_file, conclusion);
  std::chrono::milliseconds longest_stay{0};
  // The `syncrun` that has started the engine knows at once why the job ends.
  if (last_word.is_launched() && conclusion.exit_code != 0) longest_stay = kTimeToSpeak;
  else if (job) longest_stay = last_stay(conclusion, job->task, options);
  last_word.say(conclusion, longest_stay);
  stay(longest_stay);
  return conclusion.exit_code;
}

int exit_code_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return kUsageExit;
  // The kernel refused a program that passed our checks: its interpreter is missing, its format is unknown, there are
  // too many processes, ...
  return kNotExecutableExit;
}

/// Lets an engine start the job on several nodes, or says what would be started.
int launch(const CommandOptions& options, const Launch& launch) {
  const std::string& name = options.command.front();
  const bool is_in_folder = !options.folder.empty() && name.find('/') != std::string::npos && name.front() != '/';
  find_program(is_in_folder ? options.folder + "/" + name : name);  // a mistake shows at once
  if (options.action == CommandOptions::Action::dry_run) return say(describe_launch(options, launch));
  const PidFile pid_file(options.pid_file, 0);
  const Conclusion conclusion = LaunchedJob(options, launch).run();
  // The first node writes it, if it has come that far.
  std::error_code unknown;
  if (conclusion.exit_code != 0 && !options.error_file.empty() &&
      (!std::filesystem::exists(options.error_file, unknown) ||
       std::filesystem::is_empty(options.error_file, unknown))) {
    ErrorFile error_file(options.error_file, 0);
    write_error_file(error_file, conclusion);
  }
  LastWord().say(conclusion);
  return conclusion.exit_code;
}

/// Finds the program and runs it, or says what would be started.
int start(const CommandOptions& options, const LastWord& last_word) {
  const bool is_dry = options.action == CommandOptions::Action::dry_run;
  const auto job = find_job(options, ::getenv);
  ErrorFile error_file(is_dry ? "" : options.error_file, job ? job->task : 0);
  const auto report = [&](int code, const std::exception& error) {
    write_error_file(error_file, {.exit_code = code, .message = error.what()});
  };
  try {
    if (may_be_for_other_machines(options)) check_devices_of_this_machine(options);
    if (const std::string folder = options.value_of(environment::kLogDir); !folder.empty()) check_log_dir(folder);
    const auto program = find_program(options.command.front());
    if (!is_dry) return run_program(options, program, job, error_file, last_word);
    if (!job) return say(describe_start(options, program));
    return job->task != 0 ? 0 : say(describe_job(*job) + describe_start(options, program));
  } catch (const CommandFailure& failure) {
    report(failure.exit_code, failure);
    throw;
  } catch (const Error& error) {
    report(exit_code_of(error), error);
    throw;
  }
}

void enter_folder(const CommandOptions& options) {
  if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0)
    text::throw_usage("--cwd: expected a folder to run in, but " + options.folder + ": " + std::strerror(errno));
}

/// "node 2 (c): " in a job of several nodes. Else empty.
std::string name_of_node() noexcept {
  try {
    const nodes::Engine engine = nodes::find_engine(::getenv);
    return engine.has_others() ? "node " + std::to_string(engine.task) + " (" + devices::own_host_name() + "): " : "";
  } catch (const std::exception&) {
    return {};  // the variables of the engine are not as they should be
  }
}

std::chrono::milliseconds stay_of_launched(bool was_started) noexcept {
  try {
    const nodes::EngineKind kind = nodes::find_engine(::getenv).kind;
    const bool is_srun = kind == nodes::EngineKind::pmix || kind == nodes::EngineKind::srun_pmi2;
    return is_srun && !was_started ? kTimeToBeKilled : kTimeToSpeak;
  } catch (const std::exception&) {
    return kTimeToSpeak;  // the variables of the engine are not as they should be
  }
}

/// Does something that returns an exit code. An exception has one too.
template <class Action>
int with_last_word(const LastWord& last_word, Action&& action) {
  const auto fail = [&](int code, const std::exception& error, bool was_started = true) {
    const auto longest_stay = last_word.is_launched() ? stay_of_launched(was_started) : std::chrono::milliseconds(0);
    last_word.say({.exit_code = code, .message = name_of_node() + error.what(), .was_started = was_started},
                  longest_stay);
    stay(longest_stay);  // an engine may drop what a task has printed right before its end
    return code;
  };
  try {
    return action();
  } catch (const CommandFailure& failure) {
    return fail(failure.exit_code, failure, false);
  } catch (const Error& error) {
    return fail(exit_code_of(error), error);
  } catch (const std::exception& error) {
    return fail(1, error);
  }
}

/// The part of a node in a job whose engine another `syncrun` has started. `argv` is that of the usual command line.
int run_task(const std::string& token, int argc, char** argv) {
  const TaskReporter reporter(token);
  const LastWord last_word(&reporter);
  return with_last_word(last_word, [&] {
    auto options = parse_task_command_line(argc, argv);
    for (std::string& word : options.command) word = word_of_task(word);
    enter_folder(options);
    return start(options, last_word);
  });
}

int command(int argc, char** argv) {
  using Action = CommandOptions::Action;
  environment::drop_options_of_another_job();
  if (argc > 3 && argv[1] == std::string_view(kLaunchedTask)) return run_task(argv[2], argc - 2, argv + 2);
  if (const Subcommand* other = find_subcommand(argc, argv)) return other->run({argv + 2, argv + argc});
  const auto options = parse_command_line(argc, argv);
  if (options.action == Action::help) return say(help_text());
  if (options.action == Action::version) return say(std::string("syncrun ") + version() + "\n");
  if (const auto found = find_launch(options, ::getenv, tools_of_this_machine())) return launch(options, *found);
  enter_folder(options);
  return start(options, LastWord());
}

}  // namespace
}  // namespace syncrun::detail::master::command_line

int main(int argc, char** argv) {
  using namespace syncrun::detail;
  using namespace master::command_line;
  os::open_missing_standard_streams();
  return with_last_word(LastWord(), [&] { return command(argc, argv); });
}
