#include "master/command_line/supervisor.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/stop_signals.hpp"
#include "common/text/errors.hpp"
#include "master/command_line/launch.hpp"
#include "master/command_line/preparation.hpp"
#include "master/devices/host_part.hpp"
#include "syncrun/stop.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// A process that has much memory, in particular of a GPU, needs some time to die.
constexpr std::chrono::seconds kLongestKill{30};
/// How often to check for orphans. When a process dies that is not our child, its children become ours without notice.
constexpr std::chrono::milliseconds kOrphanTick{10};

/// A program that lived for less than kShortLife would probably fail again at once. So the next start waits for kPause.
constexpr std::chrono::seconds kShortLife{1};
constexpr std::chrono::seconds kPause{1};

constexpr std::chrono::milliseconds kUsualGrace{5000};
constexpr std::chrono::milliseconds kLongestJoin{20'000};

constexpr std::array kForwarded{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2};

/// How often to check whether the program is stopped.
constexpr std::chrono::milliseconds kStopTick{100};

/// True if a signal has stopped the process (the third field of /proc/PID/stat).
bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'T';
}

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

/// True if `fd` is a pipe or socket whose other end is closed. The program had the same streams.
bool has_no_reader(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
}

/// The signals that the signalfd reads. Signals that were ignored when `syncrun` was started (nohup, background jobs of
/// scripts) stay ignored. Blocking them would make them effective again.
sigset_t supervised_signals(bool is_launched) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  ::sigaddset(&set, SIGCONT);
  for (const int signal : kForwarded) {
    if (!is_ignored(signal)) ::sigaddset(&set, signal);
  }
  if (is_launched) {
    for (const int stand_in : kStandIns) ::sigaddset(&set, stand_in);
  }
  return set;
}

/// Starts the program. If the kernel refuses a program that has passed our checks (see find_program), the error says
/// what the reason may be.
process::SpawnedProcess spawn_master(const process::SpawnRequest& request) {
  try {
    return process::spawn(request);
  } catch (const Error& error) {
    const char* reason = nullptr;
    if (error.native_code() == ENOEXEC) {
      reason = "neither a program for this machine nor a script that begins with #!";
    } else if (error.native_code() == ENOENT) {
      reason = "the file is there: the interpreter or loader that it names is not";
    }
    if (reason == nullptr) throw;
    throw Error(ErrorKind::system, std::string(error.what()) + " (" + reason + ")", error.native_code());
  }
}

std::pair<os::FileDescriptor, os::FileDescriptor> make_link() {
  std::array<int, 2> ends{};
  text::check_system(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  return {os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
}

}  // namespace

Supervisor::Supervisor(Job job, std::unique_ptr<text::Logger> logger)
    : job_(std::move(job)), logger_(std::move(logger)) {}

Conclusion Supervisor::run() {
  take_signals();
  for (int restart = 0;; ++restart) {
    run_once(restart);
    Conclusion conclusion = conclude(end_);
    conclusion.may_be_started_again = can_be_started_again(conclusion);
    if (restart == job_.max_restarts || !conclusion.may_be_started_again) return conclusion;
    const std::string cause = conclusion.message.substr(0, conclusion.message.find('\n'));
    const std::string line =
        "restart " + std::to_string(restart + 1) + " of " + std::to_string(job_.max_restarts) + ", after: " + cause;
    std::fputs(text::own_line(LogLevel::warning, line).c_str(), stderr);
    if (os::Clock::now() - started_ < kShortLife) pause();
    read_signals();
    if (first_signal_ == 0) continue;
    end_.verdict.clear();  // it was printed already
    end_.stop_signal = first_signal_;
    end_.wait_status = first_signal_;  // as if the signal had ended the program, which was over
    return conclude(end_);
  }
}

/// A restart is useless if the result would be the same: the program refused its arguments (exit code 2, as for
/// `syncrun`), its session refused its options before it had workers, or it is not a Syncrun program.
bool Supervisor::can_be_started_again(const Conclusion& conclusion) const {
  const bool has_failed = !conclusion.message.empty();
  const bool is_gone = is_over();  // processes that could not be killed may hold devices
  const auto is_usage = [](const auto& detail) { return detail.first == "kind" && detail.second == "usage"; };
  const bool refused_options = !had_workers_ && std::ranges::any_of(conclusion.details, is_usage);
  const bool may_fare_better = !end_.went_on && conclusion.exit_code != kUsageExit && !refused_options;
  const bool was_told_to_stop = conclusion.exit_code == kRequeueExitCode;  // by a signal that syncrun need not know
  return has_failed && is_gone && end_.said_hello && first_signal_ == 0 && may_fare_better && !was_told_to_stop;
}

void Supervisor::pause() {
  stage_ = Stage::pausing;
  deadline_ = os::Clock::now() + kPause;
  while (first_signal_ == 0 && os::Clock::now() < deadline_) {
    wait_for_events();
    read_signals();
  }
}

void Supervisor::run_once(int restart) {
  end_ = {};
  end_.program = job_.command.front();
  if (job_.node != 0)
    end_.role = "the agent of node " + std::to_string(job_.node) + " (" + devices::own_host_name() + ")";
  stage_ = Stage::running;
  groups_.clear();
  had_workers_ = stops_by_itself_ = false;
  asked_.clear();
  start_master(restart);
  while (stage_ != Stage::over) {
    wait_for_events();
    read_signals();
    read_messages();
    collect_ended();
    advance();
  }
  read_messages();
  link_.reset();
  end_.output_has_no_reader = has_no_reader(STDOUT_FILENO) || has_no_reader(STDERR_FILENO);
}

void Supervisor::take_signals() {
  ::signal(SIGCHLD, SIG_DFL);  // if it were ignored, children would disappear without a status
  const sigset_t set = supervised_signals(job_.launched_by.has_value());
  // `syncrun` ignores SIGPIPE, because its last message may have no reader. The program gets the setting that `syncrun`
  // had.
  if (is_ignored(SIGPIPE)) broken_pipe_ = process::SpawnRequest::BrokenPipe::is_ignored;
  ::signal(SIGPIPE, SIG_IGN);
  text::check_system(::sigprocmask(SIG_SETMASK, &set, nullptr), "sigprocmask");
  signals_ = os::FileDescriptor(text::check_system(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
}

void Supervisor::start_master(int restart) {
  auto [ours, theirs] = make_link();
  process::SpawnRequest request;
  request.program = job_.program;
  request.arguments = job_.command;
  request.environment = job_.environment.set;
  request.environment.emplace_back(environment::kSupervisorFd, std::to_string(theirs.get()));
  request.unset = job_.environment.unset;
  // If these were set by accident, the program would believe that it is a worker.
  request.unset.insert(request.unset.end(), environment::kInternal.begin(), environment::kInternal.end());
  const int restarts = job_.restarts_before + restart;
  if (restarts == 0) request.unset.emplace_back(environment::kRestart);
  else request.environment.emplace_back(environment::kRestart, std::to_string(restarts));
  request.inherited = {theirs.get()};
  request.broken_pipe = broken_pipe_;
  request.reads_input = job_.node == 0;
  // An engine sends signals to the whole group, and not always those that are meant.
  request.leads_group = job_.launched_by.has_value();
  // The library lets them through as soon as it is loaded. A script or another program that starts Syncrun's would not, and
  // its children would inherit that.
  request.holds_stop_signals = job_.node != 0 && !library_named_in(job_.program).empty();
  oom_watch_.emplace();
  master_ = spawn_master(request);
  end_.master = master_.pid;
  started_ = ran_at_ = os::Clock::now();
  link_ = std::move(ours);
  logger_->debug("started " + job_.program + " as pid " + std::to_string(master_.pid));

  events_ = os::FileDescriptor(text::check_system(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  watch(signals_.get());
  watch(link_.get());
  if (job_.launched_by) watch_engine();
}

void Supervisor::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  text::check_system(::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/// Standard error is a pipe or socket to the engine's daemon on this host, which reads as long as it lives. A file, or a stream
/// that is closed, is not watched.
void Supervisor::watch_engine() {
  epoll_event event{};  // EPOLLERR, which always counts
  event.data.fd = STDERR_FILENO;
  static_cast<void>(::epoll_ctl(events_.get(), EPOLL_CTL_ADD, STDERR_FILENO, &event));
}

/// The engine may notice late that its daemon has died, and nothing that this process says arrives any more. If the node ends,
/// the other nodes notice it and say so.
void Supervisor::end_without_engine() {
  if (stage_ != Stage::running && stage_ != Stage::terminating) return;
  if (end_.verdict.empty()) {
    end_.verdict = "the engine's daemon on " + devices::own_host_name() + " has died: nothing reads the output of " +
                   end_.role + ", which is killed";
  }
  start_killing(KillReason::none);
}

/// Events only end the wait. Afterwards everything that can be read is read in a fixed order.
void Supervisor::wait_for_events() {
  std::array<epoll_event, 4> events{};
  const int count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), wait_limit_ms());
  if (count < 0 && errno != EINTR) text::throw_errno("epoll_wait");
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == STDERR_FILENO) {
      static_cast<void>(::epoll_ctl(events_.get(), EPOLL_CTL_DEL, STDERR_FILENO, nullptr));
      end_without_engine();
    }
    if (events[i].data.fd != link_.get() || (events[i].events & EPOLLHUP) == 0) continue;
    read_messages();
    link_.reset();  // otherwise its end of file would end every wait at once
  }
}

int Supervisor::wait_limit_ms() const {
  if (stage_ == Stage::killing || !master_is_alive()) return static_cast<int>(kOrphanTick.count());
  const bool has_deadline = stage_ != Stage::running && deadline_ != os::Clock::time_point::max();
  if (!has_deadline && job_.longest_stop.count() == 0) return -1;
  // check_stop() looks often.
  const auto longest = job_.longest_stop.count() == 0 ? std::chrono::milliseconds(std::chrono::hours(1)) : kStopTick;
  if (!has_deadline) return static_cast<int>(longest.count());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - os::Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, longest.count()));
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    handle_signal(job_.launched_by ? signal_from_engine(*job_.launched_by, signal) : signal,
                  info.ssi_code == SI_KERNEL ? SignalFrom::terminal : SignalFrom::process);
  }
}

void Supervisor::read_messages() {
  while (link_.is_open()) {
    const auto message = protocol::receive_from_master(link_.get());
    if (!message) return;
    handle(*message);
  }
}

void Supervisor::handle(const protocol::SupervisorMessage& message) {
  switch (message.kind) {
    case protocol::SupervisorMessage::Kind::hello:
      // A program that calls serve_if_worker and then run says it twice.
      if (!std::exchange(end_.said_hello, true)) compare_versions(message.text);
      return;
    case protocol::SupervisorMessage::Kind::details:
      if (end_.verdict.empty() && stage_ != Stage::killing) end_.details = protocol::decoded_details(message.text);
      return;
    case protocol::SupervisorMessage::Kind::note: end_.notes += '\n' + message.text; return;
    case protocol::SupervisorMessage::Kind::worker:
      logger_->debug("worker with pid " + std::to_string(message.number) + " joined");
      // A group number of 1 or less has another meaning for kill(2). Our own group must not be killed.
      if (message.number > 1 && message.number != ::getpgrp()) groups_.insert(message.number);
      had_workers_ = true;
      return;
    case protocol::SupervisorMessage::Kind::ended:
      logger_->debug("worker with pid " + std::to_string(message.number) + " ended");
      groups_.erase(message.number);
      return;
    case protocol::SupervisorMessage::Kind::verdict:
      // Only the first cause counts. What fails while everything is killed fails because of that.
      if (end_.verdict.empty() && stage_ != Stage::killing) end_.verdict = message.text;
      return;
    case protocol::SupervisorMessage::Kind::stops:
      stops_by_itself_ = true;
      if (stage_ == Stage::terminating && !grace()) deadline_ = os::Clock::time_point::max();
      return;
  }
  logger_->warn("unknown message of kind " + std::to_string(static_cast<int>(message.kind)) + " from the master");
}

/// `syncrun` and the library exchange variables and messages, which may differ between versions.
void Supervisor::compare_versions(const std::string& librarys) const {
  if (librarys == version()) return;
  logger_->warn("this is syncrun " + std::string(version()) + ", and the program uses the library of " +
                (librarys.empty() ? "an earlier version" : "version " + librarys) +
                ": options and messages may be lost. Use the syncrun that was installed with the library");
}

/// Why the master may have ended as it did, before it could say so itself.
void Supervisor::look_for_reasons() {
  const int status = *end_.wait_status;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && stage_ != Stage::killing)
    end_.kill_hint = oom_watch_->describe_kill();
  if (end_.said_hello) return;
  end_.is_privileged = raises_privileges(job_.program);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kNotFoundExit) return;
  end_.needed_library = library_named_in(job_.program);
  end_.library_folder = folder_of_library(end_.needed_library);
}

void Supervisor::collect_ended() {
  if (master_is_alive()) {
    end_.wait_status = collect(master_.pid);
    if (end_.wait_status) {
      logger_->debug("the master " + process::describe_status(*end_.wait_status));
      read_messages();  // all messages that it has sent have arrived
      look_for_reasons();
      descendants_.reap(-1);
      end_.went_on = stage_ == Stage::running && *end_.wait_status == 0 && goes_on();
      // Processes that the program has left have no reason to take long.
      if (deadline_ == os::Clock::time_point::max()) deadline_ = os::Clock::now() + kUsualGrace;
    }
  }
  descendants_.reap(master_is_alive() ? master_.pid : -1);
}

/// True if a copy of the master, which has ended, continues in its place. Before the first session, any process that is
/// left counts as one, because daemons often close all descriptors. Later, the copy holds the other end of the link.
/// Processes that a program has left running after its sessions do not belong to the job.
bool Supervisor::goes_on() const {
  if (!had_workers_) return descendants_.are_left();
  pollfd polled{link_.get(), 0, 0};  // checks for POLLHUP only
  return !groups_.empty() && link_.is_open() && ::poll(&polled, 1, 0) == 0;
}

/// Nobody else ends a master or an agent that is stopped: it hears nothing of the end of the job, and an engine may wait
/// for it.
void Supervisor::check_stop() {
  const auto now = os::Clock::now();
  if (!is_stopped(master_.pid)) ran_at_ = now;
  if (now - ran_at_ < job_.longest_stop) return;
  end_.verdict = end_.role + " was stopped by a signal, and is killed";
  start_killing(KillReason::none);
}

void Supervisor::advance() {
  const bool may_run = stage_ == Stage::running || stage_ == Stage::terminating;
  if (may_run && job_.longest_stop.count() != 0 && master_is_alive()) check_stop();
  const bool is_late = stage_ != Stage::running && os::Clock::now() >= deadline_;
  if (stage_ == Stage::running && !master_is_alive()) start_killing(KillReason::none);
  if (stage_ == Stage::terminating) {
    if (is_over()) stage_ = Stage::over;
    else if (is_late) start_killing(KillReason::grace_over);
    else if (!master_is_alive()) terminate_remaining();
  }
  if (stage_ != Stage::killing) return;
  kill_remaining();
  if (is_over()) stage_ = Stage::over;
  if (stage_ == Stage::over || os::Clock::now() < deadline_) return;
  for (const pid_t pid : descendants_.list()) logger_->error("process " + std::to_string(pid) + " could not be killed");
  stage_ = Stage::over;
}

void Supervisor::handle_signal(int signal, SignalFrom from) {
  switch (signal) {
    case SIGCHLD:  // collect_ended() follows
    case SIGURG:
    case SIGALRM: return;
    case SIGTSTP: suspend(); return;
    case SIGCONT: resume(); return;
    case SIGUSR1:
    case SIGUSR2: send_to_master(signal); return;
    default: ask_to_stop(signal, from); return;
  }
}

std::optional<std::chrono::milliseconds> Supervisor::grace() const {
  // An agent that has not joined the others may wait for a master that the signal has ended.
  if (job_.node != 0 && !job_.grace && !stops_by_itself_) return kLongestJoin;
  const bool is_on_nodes = job_.longest_stop.count() != 0;
  return job_.grace || is_on_nodes || stops_by_itself_ ? job_.grace : kUsualGrace;
}

void Supervisor::ask_to_stop(int signal, SignalFrom from) {
  // If the program has died, the engine may stop all nodes because of that.
  collect_ended();
  if (job_.launched_by && stage_ == Stage::running && !master_is_alive()) return;
  if (first_signal_ == 0) first_signal_ = signal;
  if (stage_ == Stage::terminating) {
    // When a terminal closes, several processes may send SIGHUP at once.
    const bool is_echo = signal == first_signal_ && from == SignalFrom::process &&
                         os::Clock::now() - asked_at_ < os::longest_echo(signal);
    if (signal != SIGHUP && !is_echo) start_killing(KillReason::second_signal);
    return;
  }
  if (stage_ != Stage::running) return;
  read_messages();  // the program may just have said that it ends by itself
  const auto limit = grace();
  logger_->info(text::signal_name(signal) + ": " +
                (limit ? std::to_string(limit->count()) + " ms" : "no limit of time") +
                " to end before everything is killed");
  end_.stop_signal = signal;
  end_.grace = limit.value_or(kUsualGrace);
  stage_ = Stage::terminating;
  asked_at_ = os::Clock::now();
  deadline_ = limit ? asked_at_ + *limit : os::Clock::time_point::max();
  // The terminal sends these signals to the whole foreground group, which includes the master.
  if (!(from == SignalFrom::terminal && (signal == SIGINT || signal == SIGQUIT))) send_to_master(signal);
  job_.when_asked();
}

/// Ctrl-Z. The master is stopped first. So it does not see that workers have stopped, and starts no further ones.
void Supervisor::suspend() {
  send_to_master(SIGSTOP);
  read_messages();
  send_to_groups(SIGSTOP);
  const auto before = os::Clock::now();
  ::kill(::getpid(), SIGSTOP);
  if (deadline_ != os::Clock::time_point::max()) deadline_ += os::Clock::now() - before;
  ran_at_ = os::Clock::now();
}

void Supervisor::resume() {
  send_to_groups(SIGCONT);
  send_to_master(SIGCONT);
}

/// After the master's end, no other process passes on the request to stop.
void Supervisor::terminate_remaining() {
  for (const pid_t group : groups_) {
    if (asked_.insert(group).second) ::kill(-group, SIGTERM);
  }
  for (const pid_t pid : descendants_.list()) {
    if (asked_.insert(pid).second) ::kill(pid, SIGTERM);
  }
}

void Supervisor::start_killing(KillReason reason) {
  stage_ = Stage::killing;
  deadline_ = os::Clock::now() + kLongestKill;
  if (master_is_alive()) end_.killed = reason;  // else the program has ended by itself, and others are left
}

void Supervisor::kill_remaining() {
  send_to_groups(SIGKILL);
  groups_.clear();  // Other processes may get these numbers from here on. Processes that are left become our children.
  if (!master_is_alive() && !descendants_.are_left()) return;
  for (const pid_t pid : descendants_.list()) ::kill(pid, SIGKILL);
  collect_ended();
}

void Supervisor::send_to_master(int signal) const {
  if (master_is_alive()) ::kill(master_.pid, signal);  // not reaped yet, so the pid is still its own
}

void Supervisor::send_to_groups(int signal) const {
  for (const pid_t group : groups_) ::kill(-group, signal);
}

}  // namespace syncrun::detail::master::command_line
