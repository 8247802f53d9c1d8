// The master or `syncrun` ends, in every way, while workers are idle (also with children that have left their process
// group), in a call, or starting. The whole job ends in bounded time, including grandchildren. If the master or
// `syncrun` is left, it says why.

#include <gmock/gmock.h>

#include <csignal>
#include <thread>

#include "tests/fault/matrix/matrix.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kGrace = 2s;
constexpr auto kLongGrace = 20s;  // does not end before the test has sent a second signal

struct End {
  std::string process;  // "master", "syncrun"
  std::string when;     // "idle", "setsid", "call", "start"
  std::string way;
};
void PrintTo(const End& end, std::ostream* out) { *out << end.process << " " << end.way << " " << end.when; }

int signal_of(const std::string& way) {
  if (way == "kill") return SIGKILL;
  if (way == "term") return SIGTERM;
  if (way == "hup" || way == "terminal") return SIGHUP;
  return SIGINT;
}

std::string named(int signal) {
  return std::string("SIG") + ::sigabbrev_np(signal) + " (" + ::sigdescr_np(signal) + ")";
}

/// The master ignores the first of the two signals, so the second one counts.
bool is_second(const End& end) { return end.process == "syncrun" && end.way == "int2"; }

/// A job in the state in which the test ends a process.
class Job {
 public:
  explicit Job(const End& end) {
    // One worker stops before it has joined the session.
    if (end.when == "start") fault_.emplace("SYNCRUN_FAULT", "rank=1,phase=device,way=stop");
    if (is_second(end)) deaf_.emplace("SYNCRUN_MATRIX_DEAF", "1");
    const bool has_syncrun = end.process == "syncrun" || end.way != "terminal";
    std::vector<std::string> arguments;
    if (has_syncrun) {
      arguments = {"-n",
                   "3",
                   "--quiet",
                   "--log-level",
                   is_second(end) ? "info" : "warning",
                   "--grace",
                   std::to_string((is_second(end) ? kLongGrace : kGrace).count()),
                   SYNCRUN_MATRIX_PROGRAM};
    } else {
      processes_.emplace("SYNCRUN_NPROC_PER_NODE", "3");
    }
    for (const char* argument : {"20000", "2000"}) arguments.emplace_back(argument);
    if (end.way == "exception") arguments.push_back("throw-" + end.when);
    else if (end.when != "start") arguments.push_back(end.when);
    run_.emplace(arguments, Start{.on_terminal = end.way == "terminal"}, has_syncrun ? "" : SYNCRUN_MATRIX_PROGRAM);
    const bool is_there = end.when == "start"
                              ? eventually([&] { return run_->errors().find("injected fault") != std::string::npos; })
                              : run_->prints("ready");
    EXPECT_TRUE(is_there) << run_->errors();
  }
  CommandRun& run() { return *run_; }
  pid_t master() const { return std::stoi(line_after(run_->output(), "master ").value_or("-1")); }

 private:
  std::optional<Variable> fault_;
  std::optional<Variable> processes_;
  std::optional<Variable> deaf_;
  RunFolder folder_;
  std::optional<CommandRun> run_;

  friend void expect_gone(Job& job) { expect_nothing_left(*job.run_, job.folder_); }
};

void do_it(const End& end, Job& job) {
  if (end.way == "exception") return;
  if (end.way == "terminal") return job.run().hang_up();
  const pid_t pid = end.process == "master" ? job.master() : job.run().pid();
  ASSERT_GT(pid, 1);
  ::kill(pid, signal_of(end.way));
  // Two pending signals of a kind count as one. So the test sends the second when `syncrun` has handled the first.
  if (is_second(end)) {
    ASSERT_TRUE(eventually([&] { return job.run().errors().find("SIGINT") != std::string::npos; }));
    std::this_thread::sleep_for(150ms);  // at once, it would be the same request
  }
  if (end.way == "int2") ::kill(pid, SIGINT);
}

/// The exit code, and the last message; empty if no process is left that could print one.
std::pair<int, std::string> expected(const End& end, pid_t master) {
  const int signal = signal_of(end.way);
  if (end.way == "exception") return {1, "syncrun: the program's own failure"};
  if (end.process == "syncrun" && end.way == "kill") return {1000 + SIGKILL, ""};
  if (end.process == "master" && end.way == "terminal") return {1000 + SIGHUP, ""};
  if (end.process == "syncrun") {
    const std::string why = is_second(end) ? ", and killed at the second signal" : "";
    return {128 + signal, "syncrun: stopped by " + named(signal) + why};
  }
  return {128 + signal, "syncrun: the master (pid " + std::to_string(master) + ") was killed by " + named(signal)};
}

std::string in_words(const End& end) { return expected(end, 0).second.empty() ? "gone" : "named"; }

class Ends : public testing::TestWithParam<End> {};

TEST_P(Ends, EndsTheWholeJobInBoundedTime) {
  const End& end = GetParam();
  Job job(end);
  const pid_t master = job.master();
  const auto begin = Clock::now();
  do_it(end, job);
  const int code = job.run().exit_code();
  expect_gone(job);
  const auto time = Clock::now() - begin;
  EXPECT_LT(time, kGrace + 5s);
  const auto [expected_code, words] = expected(end, master);
  EXPECT_EQ(code, expected_code) << job.run().errors();
  if (!words.empty()) {
    EXPECT_THAT(job.run().last_error_line(), HasSubstr(words));
  }
  record("ends", end.process + ", " + end.when, end.way, in_words(end), time);
}

std::vector<End> ends() {
  std::vector<End> all;
  for (const char* process : {"master", "syncrun"}) {
    for (const char* when : {"idle", "setsid", "call", "start"}) {
      for (const char* way : {"kill", "term", "int", "int2", "hup", "terminal"}) all.push_back({process, when, way});
    }
  }
  for (const char* when : {"idle", "setsid", "call"}) all.push_back({"master", when, "exception"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Ends, testing::ValuesIn(ends()), [](const auto& test) {
  return test.param.process + "_" + test.param.when + "_" + test.param.way;
});

/// Combinations that cannot happen. Their tests record why.
TEST(EndsThatAreNone, ExceptionWhileStarting) {
  record("ends", "master, start", "exception", "none: the user's function starts only after all workers are ready");
}
TEST(EndsThatAreNone, ExceptionInSyncrunIdle) {
  record("ends", "syncrun, idle", "exception", "none: `syncrun` runs no user code");
}
TEST(EndsThatAreNone, ExceptionInSyncrunSetsid) {
  record("ends", "syncrun, setsid", "exception", "none: `syncrun` runs no user code");
}
TEST(EndsThatAreNone, ExceptionInSyncrunCall) {
  record("ends", "syncrun, call", "exception", "none: `syncrun` runs no user code");
}
TEST(EndsThatAreNone, ExceptionInSyncrunStart) {
  record("ends", "syncrun, start", "exception", "none: `syncrun` runs no user code");
}

/// Only workers are left. They end themselves and the processes that their bodies have started.
class EndsAtOnce : public testing::TestWithParam<std::string> {};
TEST_P(EndsAtOnce, OfMasterAndSyncrunEndTheWorkers) {
  Job job({"syncrun", GetParam(), "kill"});
  const pid_t master = job.master();
  ASSERT_GT(master, 1);
  ::kill(job.run().pid(), SIGSTOP);  // so that `syncrun` does not see the master die
  ::kill(master, SIGKILL);
  ::kill(job.run().pid(), SIGKILL);
  EXPECT_EQ(job.run().exit_code(), 1000 + SIGKILL);
  expect_gone(job);
}
INSTANTIATE_TEST_SUITE_P(While, EndsAtOnce, testing::Values("idle", "setsid", "call", "start"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace syncrun::test
