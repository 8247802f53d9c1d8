#include "master/process/stuck_ranks.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "master/process/native_stack.hpp"

namespace {

using namespace syncrun;
using namespace syncrun::detail;

RankState in(int rank, const char* phase) {
  RankState state;
  state.rank = rank;
  state.pid = 100 + rank;
  state.device = "cpu" + std::to_string(rank);
  state.call = "step";
  state.phase = phase;
  return state;
}
RankState stopped(RankState state) {
  state.stop_signal = SIGSTOP;
  return state;
}
RankState finished(RankState state) {
  state.has_finished = true;
  state.call.clear();
  return state;
}
RankState ended(RankState state) {
  state.end = "killed by SIGKILL (Killed)";
  return state;
}

TEST(Culprit, IsWhoDoesNotWaitForOthers) {
  EXPECT_EQ(master::process::culprit_of({in(0, "collective"), in(1, "vote"), in(2, "function")}), 2);
  EXPECT_EQ(master::process::culprit_of({in(0, "collective"), in(1, "inputs")}), 1);
  EXPECT_EQ(master::process::culprit_of({in(0, "vote"), in(1, "idle")}), 1);
}

TEST(Culprit, IsWhoIsInTheUsersCodeBeforeWhoReducesWithItsPeers) {
  EXPECT_EQ(master::process::culprit_of({in(0, "reduction"), in(1, "function")}), 1);
  EXPECT_EQ(master::process::culprit_of({in(0, "vote"), in(1, "reduction")}), 1);
}

TEST(Culprit, IsNobodyWhoHasFinishedOrIsGone) {
  EXPECT_EQ(master::process::culprit_of({stopped(finished(in(0, "idle"))), in(1, "collective")}), 1);
  EXPECT_EQ(master::process::culprit_of({ended(in(0, "function")), in(1, "collective")}), 1);
  EXPECT_EQ(master::process::culprit_of({finished(in(0, "idle")), ended(in(1, "function"))}), -1);
  EXPECT_EQ(master::process::culprit_of({}), -1);
}

TEST(Report, HasALineForEveryRankAndTheStackBelow) {
  auto stuck = stopped(in(0, "function"));
  stuck.no_progress_for = std::chrono::milliseconds(1250);
  stuck.stack = {"#0 pause (libc.so.6)", "#1 train (program)"};
  auto idle = in(2, "idle");
  idle.tracer = 77;
  EXPECT_EQ(
      master::process::report_of({stuck, in(1, "collective"), idle, finished(in(3, "idle")), ended(in(4, "function"))}),
      "\n  rank 0 (cpu0, pid 100) is in phase function, stopped by SIGSTOP, call 'step', no progress for 1.2 s"
      "\n    #0 pause (libc.so.6)"
      "\n    #1 train (program)"
      "\n  rank 1 (cpu1, pid 101) is in phase collective, call 'step'"
      "\n  rank 2 (cpu2, pid 102) is in phase idle, before call 'step', traced by process 77"
      "\n  rank 3 (cpu3, pid 103) has finished, is in phase idle"
      "\n  rank 4 (cpu4, pid 104) is gone: killed by SIGKILL (Killed)");
}

TEST(Report, SaysOnceWhyThereAreNoStacks) {
  auto first = in(0, "function");
  first.no_stack = "libdw.so.1 is not installed";
  auto second = in(1, "function");
  second.no_stack = first.no_stack;
  EXPECT_EQ(master::process::report_of({first, second}),
            "\n  rank 0 (cpu0, pid 100) is in phase function, call 'step'"
            "\n    no stack: libdw.so.1 is not installed"
            "\n  rank 1 (cpu1, pid 101) is in phase function, call 'step'");
}

[[gnu::noinline]] void wait_for_the_end(int there) {
  if (::write(there, "!", 1) != 1) ::_exit(1);
  for (;;) ::pause();
}

/// A child that sleeps until the destructor kills it.
class Child {
 public:
  Child() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid = ::fork();
    if (pid == 0) wait_for_the_end(ends[1]);
    char there = 0;
    EXPECT_EQ(::read(ends[0], &there, 1), 1);
    for (const int end : ends) ::close(end);
  }
  ~Child() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid = -1;
};

bool names(const std::vector<std::string>& stack, const char* function) {
  return std::any_of(stack.begin(), stack.end(),
                     [&](const std::string& line) { return line.find(function) != std::string::npos; });
}

TEST(Stacks, AreTakenOfAllWhereAllWait) {
  const Child first;
  const Child second;
  ::kill(second.pid, SIGSTOP);
  ::waitpid(second.pid, nullptr, WUNTRACED);
  std::vector<RankState> states{in(0, "collective"), in(1, "vote")};
  states[0].pid = first.pid;
  states[1].pid = second.pid;
  master::process::take_stacks(states);
  for (const auto& state : states) {
    if (!state.no_stack.empty()) GTEST_SKIP() << "no stacks here: " << state.no_stack;
    EXPECT_TRUE(names(state.stack, "wait_for_the_end")) << master::process::report_of(states);
  }
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(second.pid), &info, WSTOPPED | WNOHANG | WNOWAIT), 0);
}

TEST(Stacks, OfAProcessThatIsGoneAreAProblemAndNoWait) {
  const Child gone;
  ::kill(gone.pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(gone.pid), &info, WEXITED | WNOWAIT);
  const auto stacks = master::process::native_stacks({gone.pid}, std::chrono::seconds(20));
  ASSERT_EQ(stacks.size(), 1U);
  EXPECT_TRUE(stacks[0].lines.empty());
  EXPECT_NE(stacks[0].problem, "");
}

TEST(Stacks, AreGivenUpAtTheLimit) {
  const Child child;
  const auto stacks = master::process::native_stacks({child.pid}, std::chrono::milliseconds(0));
  ASSERT_EQ(stacks.size(), 1U);
  EXPECT_TRUE(stacks[0].lines.empty() || stacks[0].problem.empty());
}

}  // namespace
