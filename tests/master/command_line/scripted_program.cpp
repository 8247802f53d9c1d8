// Programs for the tests of `syncrun`, which send it messages of their own making. Usage: scripted_program <script>
// [argument].

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/protocol/supervisor_link.hpp"
#include "syncrun/version.hpp"

extern char** environ;

namespace {

using syncrun::detail::protocol::SupervisorLink;
using Kind = syncrun::detail::protocol::SupervisorMessage::Kind;

struct Script {
  SupervisorLink link;
  std::string argument;
};

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void say_hello(const Script& script) { script.link.send({Kind::hello, 0, syncrun::version()}); }
void announce(const Script& script, int worker) { script.link.send({Kind::worker, worker, ""}); }
void send_verdict(const Script& script, const std::string& verdict) { script.link.send({Kind::verdict, 0, verdict}); }

void ready(const Script& script) {
  say_hello(script);
  say("ready");
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

[[noreturn]] void die_by(int signal) {
  constexpr rlimit kNoCore{0, 0};
  ::setrlimit(RLIMIT_CORE, &kNoCore);
  ::signal(signal, SIG_DFL);  // sanitizers handle some signals
  ::raise(signal);
  std::abort();
}

void block(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_SETMASK, &set, nullptr);
}

/// Returns the next blocked signal, or 0 if none arrives within the time.
int next_signal(std::initializer_list<int> signals, int milliseconds) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1000000L};
  const int signal = ::sigtimedwait(&set, nullptr, &limit);
  return signal < 0 ? 0 : signal;
}

int exit_with_code(Script& script) {
  say_hello(script);
  return std::atoi(script.argument.c_str());
}

/// Uses a library whose version is the argument.
int use_version(Script& script) {
  script.link.send({Kind::hello, 0, script.argument});
  return 0;
}

int exit_without_hello(Script& script) { return std::atoi(script.argument.c_str()); }

int restarts() {
  const char* text = std::getenv("SYNCRUN_RESTART");
  say(std::string("restart ") + (text == nullptr ? "none" : text));
  return text == nullptr ? 0 : std::atoi(text);
}

/// Exits with code 3 as often as the argument says, and then with code 0.
int fail_times(Script& script) {
  say_hello(script);
  return restarts() < std::atoi(script.argument.c_str()) ? 3 : 0;
}

/// Fails the first time, and sleeps for ever after the restart.
int fail_once(Script& script) {
  if (restarts() == 0) {
    say_hello(script);
    return 3;
  }
  ready(script);
  sleep_for_ever();
}

int crash(Script& script) {
  say_hello(script);
  die_by(SIGSEGV);
}

int fail_with_verdict(Script& script) {
  say_hello(script);
  send_verdict(script, script.argument);
  return 1;
}

int send_verdicts_and_die(Script& script) {
  say_hello(script);
  send_verdict(script, "first cause");
  send_verdict(script, "second cause");
  die_by(SIGKILL);
}

/// Starts a daemon: a grandchild in a session of its own. Returns when the daemon runs.
void start_daemon(bool ignores_sigterm) {
  std::array<int, 2> started{};
  if (::pipe(started.data()) != 0) std::abort();
  if (::fork() == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    ::setsid();
    if (ignores_sigterm) ::signal(SIGTERM, SIG_IGN);
    if (::write(started[1], "x", 1) != 1) ::_exit(1);
    sleep_for_ever();
  }
  char byte = 0;
  if (::read(started[0], &byte, 1) != 1) std::abort();
}

int leave_daemon(Script& script) {
  say_hello(script);
  start_daemon(false);
  return std::atoi(script.argument.c_str());
}

/// Ends its session and then starts a daemon.
int work_and_leave_daemon(Script& script) {
  say_hello(script);
  const pid_t worker = ::fork();
  if (worker == 0) ::_exit(0);
  announce(script, worker);
  ::waitpid(worker, nullptr, 0);
  script.link.send({Kind::ended, worker, ""});
  start_daemon(false);
  return std::atoi(script.argument.c_str());
}

/// Calls daemon(3) before anything else.
int become_daemon_before_hello(Script& script) {
  if (::daemon(1, 1) != 0) std::abort();
  ready(script);
  sleep_for_ever();
}

/// Starts two workers. Each leads a process group in which it has a child.
std::vector<pid_t> start_workers(const Script& script) {
  std::vector<pid_t> workers;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::setpgid(0, 0);
      ::fork();
      sleep_for_ever();
    }
    ::setpgid(worker, worker);
    announce(script, worker);
    workers.push_back(worker);
  }
  return workers;
}

/// Calls daemon(3) and then closes all descriptors from 3 on, as many daemons do.
int become_daemon_without_descriptors(Script& script) {
  say_hello(script);
  if (::daemon(1, 0) != 0) std::abort();
  ::closefrom(3);
  sleep_for_ever();
}

/// Calls daemon(3) in the middle of a session.
int become_daemon_with_workers(Script& script) {
  say_hello(script);
  start_workers(script);
  if (::daemon(1, 1) != 0) std::abort();
  sleep_for_ever();
}

int run_workers(Script& script) {
  start_workers(script);
  ready(script);
  sleep_for_ever();
}

/// The first time, it writes the pids of its workers to a file and dies. The second time, it says which of them still
/// exist.
int look_for_former(Script& script) {
  say_hello(script);
  if (restarts() == 0) {
    std::ofstream former(script.argument);
    for (const pid_t worker : start_workers(script)) former << worker << " ";
    former.close();
    die_by(SIGKILL);
  }
  std::ifstream former(script.argument);
  for (pid_t worker = 0; former >> worker;) say(::kill(worker, 0) == 0 ? "is there" : "is gone");
  return 0;
}

int announce_everybody(Script& script) {
  say_hello(script);
  for (const int number : {-1, 0, 1, static_cast<int>(::getpgrp())}) {
    announce(script, number);
  }
  return 4;
}

int ignore_requests(Script& script) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
  ready(script);
  sleep_for_ever();
}

/// Prints the name of each signal that arrives. After the first request to stop, it exits when no signal has arrived for
/// 200 ms. The exit code is the argument, or 0.
int report_signals(Script& script) {
  const auto signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  block(signals);
  if (script.argument == "daemon") start_daemon(true);
  ready(script);
  bool asked = false;
  for (;;) {
    const int signal = next_signal(signals, asked ? 200 : 30000);
    if (signal == 0) return std::atoi(script.argument.c_str());
    say(std::string("got SIG") + ::sigabbrev_np(signal));
    asked = asked || (signal != SIGUSR1 && signal != SIGUSR2);
  }
}

int report_start(Script& script) {
  say_hello(script);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "SYNCRUN_", 8) == 0) say(*variable);
  }
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  say(::sigisemptyset(&blocked) != 0 ? "nothing is blocked" : "signals are blocked");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(Script&)> scripts{{"exit", exit_with_code},
                                                        {"exit-without-hello", exit_without_hello},
                                                        {"use-version", use_version},
                                                        {"crash", crash},
                                                        {"fail-times", fail_times},
                                                        {"fail-once", fail_once},
                                                        {"look-for-former", look_for_former},
                                                        {"verdict", fail_with_verdict},
                                                        {"verdicts-and-die", send_verdicts_and_die},
                                                        {"leave-daemon", leave_daemon},
                                                        {"work-and-leave-daemon", work_and_leave_daemon},
                                                        {"daemon-before-hello", become_daemon_before_hello},
                                                        {"daemon-with-workers", become_daemon_with_workers},
                                                        {"daemon-that-closes", become_daemon_without_descriptors},
                                                        {"workers", run_workers},
                                                        {"announce-everybody", announce_everybody},
                                                        {"ignore-requests", ignore_requests},
                                                        {"report-signals", report_signals},
                                                        {"report-start", report_start}};
  Script script{SupervisorLink::from_environment(), argc > 2 ? argv[2] : ""};
  const auto found = scripts.find(argc > 1 ? argv[1] : "");
  if (found == scripts.end()) return 99;
  if (found->first == "report-start") {
    for (int i = 0; i < argc; ++i) say(std::string("argument ") + argv[i]);
  }
  return found->second(script);
}
