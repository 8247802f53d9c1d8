#include "master/command_line/launched_job.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/executable.hpp"
#include "common/os/stop_signals.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/numbers.hpp"
#include "master/command_line/preparation.hpp"

namespace syncrun::detail::master::command_line {

namespace {

using std::chrono::milliseconds;

constexpr std::array kEndSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/// An engine that has not returned this long after a task has failed, or after all have ended well, is ended.
constexpr milliseconds kTimeAfterFailure{2000};
constexpr milliseconds kTimeAfterEnd{10'000};
/// The same after all other nodes than the first have ended well. The program has taken leave of them, and is ending.
constexpr milliseconds kTimeAfterLeave{20'000};
/// How long an engine may take to end its processes.
constexpr milliseconds kTimeToEnd{5000};
/// How long a node may take to answer before a restart.
constexpr milliseconds kTimeToAnswer{15'000};
constexpr int kMostQuestions = 3;
constexpr milliseconds kPauseBeforeStart{1000};
/// The longest wait for the rest of a line, which may be a question to the user.
constexpr milliseconds kTick{200};

/// In place of a task: what the engine itself prints, and what tasks print through it without blocks.
constexpr int kEngine = -1;

/// What the mpirun of MPICH says if a program cannot be started. It then waits for the other tasks, which wait for this one.
constexpr std::string_view kNotStarted = "execvp error on file";

std::string seconds_of(milliseconds time) { return number_text(static_cast<double>(time.count()) / 1000) + " s"; }

bool has_to_be_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

void write_errors(std::string_view text) { write_fully(STDERR_FILENO, text); }

milliseconds start_timeout(const CommandOptions& options) {
  constexpr double kUsualTimeout = 60;
  const double seconds = text::parse_number(options.effective(environment::kStartTimeout)).value_or(kUsualTimeout);
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Starts a program of the engine's. It leads a group, because the keys of a terminal must not reach it: it would end the
/// job at a signal that the program wants to decide about.
process::SpawnedProcess start_program(const std::vector<std::string>& command, int output, int errors,
                                      bool reads_input) {
  process::SpawnRequest request;
  const os::FoundExecutable found = os::find_executable(command.front());
  request.program = found.error == 0 ? found.path : command.front();
  request.arguments = command;
  request.unset.assign(environment::kInternal.begin(), environment::kInternal.end());
  if (nodes::find_engine(::getenv).kind != nodes::EngineKind::none) {
    for (const std::string& name : tools_of_this_machine().variables()) {
      if (is_of_task(name)) request.unset.push_back(name);
    }
  }
  request.standard_output = output;
  request.standard_error = errors;
  request.reads_input = reads_input;
  request.leads_group = true;
  return process::spawn(request);
}

/// Makes a pipe. `ours` is the end from which this process reads, without waiting. Returns the other end.
os::FileDescriptor make_pipe(os::FileDescriptor& ours) {
  std::array<int, 2> ends{};
  text::check_system(::pipe2(ends.data(), O_CLOEXEC), "pipe2");
  ours = os::FileDescriptor(ends[0]);
  os::FileDescriptor theirs(ends[1]);
  text::check_system(::fcntl(ours.get(), F_SETFL, O_NONBLOCK), "fcntl");
  return theirs;
}

}  // namespace

LaunchedJob::LaunchedJob(const CommandOptions& options, Launch launch)
    : options_(options), launch_(std::move(launch)) {}

Conclusion LaunchedJob::run() {
  take_signals();
  for (int restart = 0;; ++restart) {
    run_once(options_.restart + restart);
    const Conclusion conclusion = conclude_attempt();
    launch_.overlaps = true;
    std::string news;
    const bool starts_again = restart != options_.max_restarts && may_start_again(conclusion, news);
    if (!news.empty() || starts_again) {
      const std::string cause = conclusion.message.substr(0, conclusion.message.find('\n'));
      const std::string line = "restart " + std::to_string(restart + 1) + " of " +
                               std::to_string(options_.max_restarts) + (starts_again ? "" : " is not possible") +
                               ", after: " + cause + news;
      write_errors(text::own_line(LogLevel::warning, line));
    }
    if (!starts_again) return conclusion;
    pause();
    if (first_signal_ == 0) continue;
    return {kSignalExit + first_signal_, "stopped by " + text::signal_name(first_signal_), true};
  }
}

void LaunchedJob::take_signals() {
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int signal : {SIGUSR1, SIGUSR2}) ::sigaddset(&set, signal);
  for (const int signal : kEndSignals) {
    if (!has_to_be_ignored(signal)) ::sigaddset(&set, signal);
  }
  text::check_system(::sigprocmask(SIG_SETMASK, &set, nullptr), "sigprocmask");
  signals_ = os::FileDescriptor(text::check_system(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
}

std::span<const std::string> LaunchedJob::hosts_in_use() const {
  const auto nodes = static_cast<std::size_t>(launch_.nodes);
  return launch_.hosts.size() >= nodes ? std::span(launch_.hosts).first(nodes) : std::span<const std::string>();
}

void LaunchedJob::run_once(int restart) {
  attempt_ = {};
  attempt_.began = os::Clock::now();
  stage_ = Stage::running;
  deadline_.reset();
  messengers_.clear();
  partial_.clear();
  rests_.clear();
  const os::FileDescriptor their_output = make_pipe(output_);
  const os::FileDescriptor their_errors = make_pipe(errors_);
  const auto command =
      engine_command(launch_, launch_.nodes, hosts_in_use(), task_command(options_, launch_, restart, token_));
  // An engine must not read from a terminal that belongs to another group.
  engine_ = start_program(command, their_output.get(), their_errors.get(), ::isatty(STDIN_FILENO) == 0);
  // No limit for a scheduler, which may let the job wait for nodes.
  const milliseconds most = start_timeout(options_);
  if (launch_.launcher != Launcher::srun && most.count() != 0) limit(most + kTimeToEnd);
  while (stage_ != Stage::over) {
    wait_for_events();
    read_signals();
    read_streams();
    advance();
  }
  end_rest();
  while (read_streams()) {
  }
  write_rests();
  write_errors(partial_);
}

void LaunchedJob::wait_for_events() {
  std::array<pollfd, 3> events{{{signals_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}, {output_.get(), POLLIN, 0}}};
  std::int64_t time = kTick.count();
  if (deadline_) {
    const auto left = std::chrono::ceil<milliseconds>(*deadline_ - os::Clock::now()).count();
    time = std::clamp<std::int64_t>(left, 0, time);
  }
  const int count = ::poll(events.data(), events.size(), static_cast<int>(time));
  if (count < 0 && errno != EINTR) text::throw_errno("poll");
  if (count != 0) return;
  write_rests();
  if (partial_.find(kLaunchedMark) == std::string::npos && partial_.find(kBlockMark) == std::string::npos)
    write_errors(std::exchange(partial_, {}));
}

// ---- what the engine prints -----------------------------------------------------------------------------------

/// Reads some of what has come. Returns false if that was nothing.
bool LaunchedJob::read_streams() {
  std::array<char, 65536> bytes;
  bool did_something = false;
  for (const os::FileDescriptor* stream : {&output_, &errors_}) {
    const auto count = ::read(stream->get(), bytes.data(), bytes.size());
    if (count <= 0) continue;
    did_something = true;
    const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
    if (stream == &output_) {
      take_block({.task = kEngine, .kind = BlockKind::output, .bytes = text});
    } else {
      partial_ += text;
      take_text();
    }
  }
  return did_something;
}

void LaunchedJob::take_text() {
  std::size_t begin = 0;
  for (;;) {
    const std::string_view text = std::string_view(partial_).substr(begin);
    if (const auto block = block_at(text, token_)) {
      if (block->size == 0) break;  // the rest comes later
      take_block(*block);
      begin += block->size;
      continue;
    }
    const auto end = text.find('\n');
    if (end == std::string_view::npos) break;
    // A message of the engine may have no end.
    const auto mark = text.substr(0, end).find(kBlockMark);
    const auto size = mark == std::string_view::npos || mark == 0 ? end + 1 : mark;
    take_line(std::string(text.substr(0, size)));
    begin += size;
  }
  partial_.erase(0, begin);
}

/// Passes on whole lines.
void LaunchedJob::take_block(const Block& block) {
  std::string& rest = rests_[{block.task, block.kind}];
  rest += block.bytes;
  const auto size = rest.rfind('\n') + 1;  // 0 if there is none
  if (size == 0) return;
  const std::string lines = rest.substr(0, size);
  rest.erase(0, size);
  if (block.kind != BlockKind::report)
    return write(block.kind == BlockKind::output ? STDOUT_FILENO : STDERR_FILENO, lines);
  for (std::size_t begin = 0, end = 0; begin < lines.size(); begin = end + 1) {
    end = lines.find('\n', begin);
    if (const auto report = report_in(lines.substr(begin, end - begin), token_)) take_report(*report);
  }
}

void LaunchedJob::write_rests() {
  for (auto& [source, rest] : rests_) {
    if (source.second != BlockKind::report)
      write(source.second == BlockKind::output ? STDOUT_FILENO : STDERR_FILENO, std::exchange(rest, {}));
  }
}

/// Signals and limits count also while the reader of the output is slow.
void LaunchedJob::write(int fd, std::string_view text) {
  constexpr std::size_t kSurelyWritten = 4096;  // PIPE_BUF
  while (!text.empty() && !was_asked_twice_) {
    std::array<pollfd, 2> events{{{fd, POLLOUT, 0}, {signals_.get(), POLLIN, 0}}};
    static_cast<void>(::poll(events.data(), events.size(), static_cast<int>(kTick.count())));
    if (events[1].revents != 0) read_signals();
    if (events[0].revents == 0) {
      advance();
      continue;
    }
    const auto count = ::write(fd, text.data(), std::min(text.size(), kSurelyWritten));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return;  // nobody reads
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void LaunchedJob::take_line(const std::string& line) {
  if (const auto report = report_in(line, token_)) {
    // While the program runs, the beginning of one of its lines may stand before the report.
    if (report->kind == TaskReport::Kind::asked) write_errors(line.substr(0, line.find(kLaunchedMark)));
    return take_report(*report);
  }
  write_errors(line);
  if (launch_.launcher == Launcher::hydra && line.find(kNotStarted) != std::string::npos) {
    attempt_.failures.push_back({.exit_code = kNotFoundExit,
                                 .message = "syncrun was not started on a node: " + line.substr(0, line.find('\n'))});
    limit(kTimeAfterFailure);
  }
}

void LaunchedJob::take_report(const TaskReport& report) {
  if (attempt_.tasks.empty() && stage_ == Stage::running) deadline_.reset();
  attempt_.tasks[report.task] = report;
  const bool was_asked = report.kind == TaskReport::Kind::asked || report.was_asked;
  const bool has_failure = std::any_of(attempt_.failures.begin(), attempt_.failures.end(),
                                       [](const TaskReport& each) { return !each.was_asked; });
  if (was_asked && !has_failure && stage_ == Stage::running) attempt_.asked.insert(report.task);
  if (report.kind != TaskReport::Kind::ended) return;
  if (report.exit_code != 0) {
    attempt_.failures.push_back(report);
    limit(report.stay + kTimeAfterFailure);
    // srun would tell the others to stop, and wait: an agent then waits for its master, which may not have come.
    const bool is_running = stage_ == Stage::running && !attempt_.wait_status;
    if (!report.was_started && is_running && launch_.launcher == Launcher::srun &&
        !std::exchange(attempt_.is_killed, true))
      static_cast<void>(let_slurm_signal("KILL"));
  } else if (report.task == 0 || all_have_ended()) {
    limit(kTimeAfterEnd);
  } else if (others_have_ended()) {
    limit(kTimeAfterLeave);
  }
}

bool LaunchedJob::others_have_ended() const {
  for (int task = 1; task < launch_.nodes; ++task) {
    if (!has_ended(task)) return false;
  }
  return true;
}

bool LaunchedJob::has_ended(int task) const {
  const auto found = attempt_.tasks.find(task);
  return found != attempt_.tasks.end() && found->second.kind == TaskReport::Kind::ended;
}

bool LaunchedJob::all_have_ended() const { return has_ended(0) && others_have_ended(); }

/// The engine has this much time from now on, if it has not more already.
void LaunchedJob::limit(milliseconds time) {
  if (stage_ != Stage::running) return;
  const auto end = os::Clock::now() + time;
  deadline_ = deadline_ ? std::max(*deadline_, end) : end;
}

// ---- signals --------------------------------------------------------------------------------------------------

void LaunchedJob::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGUSR1 || signal == SIGUSR2) pass_on(signal);
    else if (signal != SIGCHLD) ask_to_stop(signal);
  }
}

void LaunchedJob::ask_to_stop(int signal) {
  const auto now = os::Clock::now();
  if (first_signal_ != 0) {
    if (signal == SIGHUP || (signal == first_signal_ && now - asked_at_ < os::longest_echo(signal))) return;
    was_asked_twice_ = true;
    return end_engine("");
  }
  first_signal_ = signal;
  asked_at_ = now;
  if (attempt_.tasks.empty()) return end_engine("");
  pass_on(signal);
  const std::optional<milliseconds> grace = options_.grace;
  if (options_.is_given("grace") && grace) limit(*grace + kTimeToEnd);
}

/// Gives a signal to the program, in the way that the engine offers.
void LaunchedJob::pass_on(int signal) {
  if (stage_ != Stage::running || attempt_.tasks.empty() || attempt_.wait_status) return;
  if (const int other = signal_for_engine(launch_.launcher, signal); other != 0) {
    ::kill(engine_.pid, other);
    return;
  }
  // srun ends the job at SIGTERM.
  if (!let_slurm_signal(signal == SIGINT ? "INT" : "TERM")) end_engine("");
}

/// Slurm itself gives the signal to the tasks. Returns false if its tool is not there.
bool LaunchedJob::let_slurm_signal(const std::string& name) {
  try {
    const std::string& step = attempt_.tasks.begin()->second.job;
    messengers_.push_back(start_program({"scancel", "--signal=" + name, step}, -1, -1, false).pid);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// ---- the end --------------------------------------------------------------------------------------------------

void LaunchedJob::advance() {
  for (auto each = messengers_.begin(); each != messengers_.end();) {
    const auto status = collect(*each);
    if (status && *status != 0 && first_signal_ != 0 && !has_ended(0))
      end_engine("scancel could not tell the job to stop, so srun was ended");
    each = status ? messengers_.erase(each) : std::next(each);
  }
  if (!attempt_.wait_status) attempt_.wait_status = collect(engine_.pid);
  // reap() would drop how the messengers have ended.
  if (messengers_.empty()) descendants_.reap(attempt_.wait_status ? -1 : engine_.pid);
  if (attempt_.wait_status) {
    stage_ = Stage::over;
    return;
  }
  if (!deadline_ || os::Clock::now() < *deadline_) return;
  if (stage_ == Stage::running) {
    end_engine(attempt_.tasks.empty() ? name_of(launch_) + " has started syncrun on no node within " +
                                            seconds_of(start_timeout(options_)) + " (--start-timeout), and was ended"
                                      : name_of(launch_) + " did not return, and was ended");
  } else {
    stage_ = Stage::killing;
    ::kill(engine_.pid, SIGKILL);
    deadline_ = os::Clock::now() + kTimeToEnd;
  }
}

/// The mpirun of MPICH passes SIGTERM on, and does not end. If it dies, its processes on the nodes end their tasks.
void LaunchedJob::end_engine(const std::string& why) {
  if (stage_ != Stage::running) return;
  stage_ = Stage::ending;
  attempt_.why_ended = why;
  ::kill(engine_.pid, launch_.launcher == Launcher::hydra ? SIGKILL : SIGTERM);
  deadline_ = os::Clock::now() + kTimeToEnd;
}

/// Ends what the engine has left on this machine.
void LaunchedJob::end_rest() {
  const auto end = os::Clock::now() + kTimeToEnd;
  while (descendants_.are_left() && os::Clock::now() < end) {
    for (const pid_t pid : descendants_.list()) ::kill(pid, SIGKILL);
    read_streams();
    pollfd event{signals_.get(), POLLIN, 0};
    static_cast<void>(::poll(&event, 1, 10));
    read_signals();
    descendants_.reap(-1);
  }
}

void LaunchedJob::pause() {
  const auto end = os::Clock::now() + kPauseBeforeStart;
  while (first_signal_ == 0 && os::Clock::now() < end) {
    pollfd event{signals_.get(), POLLIN, 0};
    static_cast<void>(::poll(&event, 1, static_cast<int>(kTick.count())));
    read_signals();
  }
}

/// Why the engine has ended without a word of the program.
std::string LaunchedJob::describe_end() const {
  const std::string status = name_of(launch_) + " " + process::describe_status(*attempt_.wait_status);
  if (!attempt_.why_ended.empty()) return attempt_.why_ended;
  if (attempt_.tasks.empty()) return status + " before syncrun had begun on any node; its own message is above";
  std::string silent;
  for (int task = 0; task < launch_.nodes; ++task) {
    const auto found = attempt_.tasks.find(task);
    if (has_ended(task)) continue;
    silent += (silent.empty() ? "" : ", ") + std::string("node ") + std::to_string(task) +
              (found != attempt_.tasks.end() ? " (" + found->second.host + ")" : ", which has not begun");
  }
  return status + " before the program had said how it ended; without a last word: " + silent;
}

/// The first node knows how the program ended, unless the engine has stopped it because another node has failed. Engines
/// change exit codes: that of MPICH returns 0 after SIGTERM.
Conclusion LaunchedJob::conclude_attempt() const {
  if (has_ended(0) && attempt_.tasks.at(0).exit_code == 0) return {};
  const auto& failures = attempt_.failures;
  const auto find = [&](auto&& holds) { return std::find_if(failures.begin(), failures.end(), holds); };
  // An engine stops the other tasks when one has failed, or has died without a word. An agent that is stopped so may blame
  // the node of the master, which is stopped too. But if the program itself ends in order, its exit code counts.
  const bool has_silent = !all_have_ended();
  const auto is_cause = [this, has_silent](const TaskReport& each) {
    const bool is_own_end = each.exit_code < kSignalExit && (each.task == 0 || !has_silent);
    return first_signal_ != 0 || !each.was_asked || is_own_end;
  };
  auto cause = find([&](const TaskReport& each) { return each.task == 0 && has_ended(0) && is_cause(each); });
  if (cause == failures.end()) cause = find(is_cause);
  if (cause == failures.end() && !has_silent) cause = find([](const TaskReport& each) { return each.task == 0; });

  Conclusion conclusion;
  conclusion.was_asked = first_signal_ != 0;
  conclusion.may_be_started_again =
      cause != failures.end() ? cause->may_restart : attempt_.tasks.size() == static_cast<std::size_t>(launch_.nodes);
  const bool is_stopped = first_signal_ != 0 && !has_ended(0);
  if (is_stopped) {
    conclusion.exit_code = kSignalExit + first_signal_;
    conclusion.message = "stopped by " + text::signal_name(first_signal_) +
                         (was_asked_twice_ ? ", and killed at the second signal" : "");
  } else if (cause != failures.end()) {
    conclusion.exit_code = cause->exit_code;
    conclusion.message = cause->message;
  } else {
    const int status = *attempt_.wait_status;
    conclusion.exit_code = WIFEXITED(status) && attempt_.why_ended.empty() ? std::max(1, WEXITSTATUS(status)) : 1;
    conclusion.message = describe_end();
  }
  for (auto each = failures.begin(); each != failures.end(); ++each) {
    if ((each != cause || is_stopped) && !each->message.empty())
      write_errors(text::own_line(LogLevel::warning, each->message));
  }
  if (!attempt_.why_ended.empty() && conclusion.message != attempt_.why_ended)
    write_errors(text::own_line(LogLevel::warning, attempt_.why_ended));
  return conclusion;
}

// ---- restarts -------------------------------------------------------------------------------------------------

/// Sets `news` to what the user has to know about the nodes.
bool LaunchedJob::may_start_again(const Conclusion& conclusion, std::string& news) {
  const bool has_failed = conclusion.exit_code != 0;
  if (!has_failed || first_signal_ != 0 || conclusion.exit_code == kUsageExit) return false;
  if (has_ended(0) && !attempt_.tasks.at(0).was_asked && !conclusion.may_be_started_again) return false;
  // An engine stops the other tasks when one dies without a word, but only a scheduler or a user stops all of them.
  if (attempt_.asked.size() == static_cast<std::size_t>(launch_.nodes)) {
    news = "; a signal has told all nodes to stop";
    return false;
  }
  if (hosts_in_use().empty() || all_have_ended()) return conclusion.may_be_started_again;
  const bool were_complete = conclusion.may_be_started_again;
  return replace_lost_hosts(news) && (were_complete || !news.empty());
}

/// The hosts on which the engine can start something now.
std::set<std::string> LaunchedJob::hosts_that_answer() {
  const os::FileDescriptor nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::vector<std::string> question{task_command(options_, launch_, 0, "").front(), "--version"};
  std::map<pid_t, std::string> asked;
  std::map<std::string, int> times;
  const auto ask = [&](const std::string& host) {
    const auto command = engine_command(launch_, 1, std::span(&host, 1), question);
    asked.emplace(start_program(command, nowhere.get(), nowhere.get(), false).pid, host);
    ++times[host];
  };
  for (const std::string& host : launch_.hosts) ask(host);
  std::set<std::string> answers;
  const auto end = os::Clock::now() + kTimeToAnswer;
  while (!asked.empty() && first_signal_ == 0 && os::Clock::now() < end) {
    pollfd event{signals_.get(), POLLIN, 0};
    static_cast<void>(::poll(&event, 1, static_cast<int>(kTick.count())));
    read_signals();
    std::vector<std::string> failed;
    for (auto each = asked.begin(); each != asked.end();) {
      const auto status = collect(each->first);
      if (status && *status == 0) answers.insert(each->second);
      else if (status) failed.push_back(each->second);
      each = status ? asked.erase(each) : std::next(each);
    }
    // Several starts of Open MPI at a time may remove each other's temporary folders.
    for (const std::string& host : failed) {
      if (times[host] < kMostQuestions) ask(host);
    }
  }
  for (const auto& [pid, host] : asked) ::kill(pid, SIGTERM);
  end_rest();
  return answers;
}

/// Puts spare hosts in the places of those that do not answer. Returns false if there are too few.
bool LaunchedJob::replace_lost_hosts(std::string& news) {
  const std::set<std::string> answers = hosts_that_answer();
  std::vector<std::string>& hosts = launch_.hosts;
  const auto nodes = static_cast<std::size_t>(launch_.nodes);
  std::size_t spare = nodes;
  for (std::size_t at = 0; at < nodes; ++at) {
    if (answers.contains(hosts[at])) continue;
    while (spare < hosts.size() && !answers.contains(hosts[spare])) ++spare;
    news += "; " + hosts[at] + " does not answer, ";
    if (spare == hosts.size()) {
      news += "and no spare node is left";
      return false;
    }
    news += hosts[spare] + " takes its place";
    std::swap(hosts[at], hosts[spare++]);
  }
  return true;
}

}  // namespace syncrun::detail::master::command_line
