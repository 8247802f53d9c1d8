// `syncrun` when a process of the job dies, and when `syncrun` is asked to end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

bool all_are(const std::vector<pid_t>& pids, bool stopped) {
  return std::all_of(pids.begin(), pids.end(), [&](pid_t pid) { return (state_of(pid) == 'T') == stopped; });
}

TEST(Death, OfTheMasterDoesNotLoseItsFirstVerdict) {
  CommandRun run({scripted_program(), "verdicts-and-die"});
  EXPECT_EQ(run.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(run.last_error_line(), "syncrun: first cause");
}

TEST(Death, OfTheMasterEndsDaemonsToo) {
  for (const std::string script : {"leave-daemon", "work-and-leave-daemon"}) {
    CommandRun run({scripted_program(), script, "5"});
    EXPECT_EQ(run.exit_code(), 5);
    EXPECT_EQ(run.last_error_line(), "syncrun: the program exited with code 5");
    EXPECT_TRUE(run.processes().empty());
  }
}

// ---- a program that becomes a daemon ----------------------------------------------------------------------------

void expect_told_that_it_left(CommandRun& run) {
  EXPECT_EQ(run.exit_code(), 125);
  EXPECT_THAT(run.last_error_line(), HasSubstr(" exited with code 0 while a process that it had forked went on: a "
                                               "program that becomes a daemon leaves syncrun"));
  EXPECT_TRUE(run.processes().empty());
}

TEST(Daemon, LeavesSyncrunAndIsEnded) {
  for (const std::string script :
       {"leave-daemon", "daemon-before-hello", "daemon-with-workers", "daemon-that-closes"}) {
    CommandRun run({"--max-restarts", "2", scripted_program(), script, "0"});
    expect_told_that_it_left(run);
    EXPECT_THAT(run.errors(), Not(HasSubstr("restart"))) << "it would leave again";
  }
}

TEST(Daemon, BehindAShellLeavesSyncrunToo) {
  const TemporaryFolder folder;
  const std::string shell = "\"$0\" report-signals >\"$1\" & until grep -q ready \"$1\"; do sleep 0.01; done";
  CommandRun run({"sh", "-c", shell, scripted_program(), folder.at("output")});
  expect_told_that_it_left(run);
}

/// When a program has done its work, `syncrun` ends the processes that it leaves running. These are not a failure of
/// the program.
TEST(Daemon, OfAProgramWhoseSessionsAreOverIsNotTheJob) {
  CommandRun run({scripted_program(), "work-and-leave-daemon", "0"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.errors(), "");
  EXPECT_TRUE(run.processes().empty());
}

TEST(Death, SparesWhoeverWasThereBeforeSyncrun) {
  CommandRun run({"-c", "sleep 1000 & exec \"$@\"", "sh", SYNCRUN_COMMAND, scripted_program(), "leave-daemon", "6"}, {},
                 "/bin/sh");
  EXPECT_EQ(run.exit_code(), 6);
  EXPECT_EQ(run.processes().size(), 1);
}

TEST(Death, SparesGroupsThatNoWorkerCanLead) {
  CommandRun run({scripted_program(), "announce-everybody"});
  EXPECT_EQ(run.exit_code(), 4);
}

class StopSignal : public testing::TestWithParam<int> {};

TEST_P(StopSignal, IsPassedOnAndTheProgramDecidesHowItEnds) {
  const std::string name = std::string("SIG") + ::sigabbrev_np(GetParam());
  for (const int code : {0, 75}) {
    CommandRun run({scripted_program(), "report-signals", std::to_string(code)});
    ASSERT_TRUE(run.prints("ready"));
    run.send(GetParam());
    EXPECT_EQ(run.exit_code(), code);
    EXPECT_EQ(run.output(), "ready\ngot " + name + "\n");
    if (code == 0) EXPECT_EQ(run.errors(), "");
    else
      EXPECT_THAT(run.last_error_line(),
                  MatchesRegex("syncrun: stopped by " + name + ".*: the program exited with code 75"));
  }
}

TEST_P(StopSignal, IsTheExitCodeIfTheProgramDiesOfIt) {
  CommandRun run({scripted_program(), "workers"});
  ASSERT_TRUE(run.prints("ready"));
  run.send(GetParam());
  EXPECT_EQ(run.exit_code(), 128 + GetParam());
  EXPECT_THAT(run.last_error_line(), HasSubstr(std::string("syncrun: stopped by SIG") + ::sigabbrev_np(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Of, StopSignal, testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT),
                         [](const auto& info) { return std::string(::sigabbrev_np(info.param)); });

TEST(StopSignal, GivesGraceToWhatTheMasterLeft) {
  CommandRun run({"--grace", "5", scripted_program(), "report-signals", "daemon"});
  ASSERT_TRUE(run.prints("ready"));
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 0) << "it is that of the program, which has ended by itself";
  EXPECT_EQ(run.errors(), "");
  EXPECT_TRUE(run.processes().empty());
}

TEST(StopSignal, FromTheTerminalReachesTheMasterOnce) {
  CommandRun run({scripted_program(), "report-signals"}, {.on_terminal = true});
  ASSERT_TRUE(run.prints("ready"));
  run.type("\x03");
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "ready\ngot SIGINT\n");
}

TEST(StopSignal, ThatComesAgainAtOnceIsOneRequest) {
  // On a busy machine, the second signal may come too late to belong to the first.
  constexpr int kMostTries = 20;
  int code = -1;
  for (int i = 0; i < kMostTries && code != 0; ++i) {
    CommandRun run({scripted_program(), "report-signals"});
    ASSERT_TRUE(run.prints("ready"));
    run.send(SIGTERM);
    ASSERT_TRUE(run.prints("got SIGTERM"));
    run.send(SIGTERM);  // timeout(1) does this: it signals the process, and then its group
    code = run.exit_code();
  }
  EXPECT_EQ(code, 0);
}

TEST(StopSignal, StaysIgnoredUnderNohupAndUserSignalsArePassedOn) {
  CommandRun run({scripted_program(), "report-signals"}, {.ignores_sighup = true});
  ASSERT_TRUE(run.prints("ready"));
  run.send(SIGHUP);
  run.send(SIGUSR1);
  ASSERT_TRUE(run.prints("got SIGUSR1"));
  run.send(SIGUSR2);
  ASSERT_TRUE(run.prints("got SIGUSR2"));
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_THAT(run.output(), Not(HasSubstr("SIGHUP")));
}

TEST(Suspension, BySignalOrTerminalStopsAndContinuesTheWholeJob) {
  for (const bool on_terminal : {false, true}) {
    CommandRun run({scripted_program(), "workers"}, {.on_terminal = on_terminal});
    ASSERT_TRUE(run.prints("ready"));
    ASSERT_TRUE(eventually([&] { return run.processes().size() == 6; }));  // syncrun, master, two workers, two children
    const auto processes = run.processes();
    for (int round = 0; round < (on_terminal ? 1 : 3); ++round) {
      if (on_terminal) run.type("\x1a");
      else run.send(SIGTSTP);
      EXPECT_TRUE(eventually([&] { return all_are(processes, true); }));
      run.send(SIGCONT);
      EXPECT_TRUE(eventually([&] { return all_are(processes, false); }));
    }
    run.send(SIGTERM);
    EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
    EXPECT_TRUE(run.processes().empty());
  }
}

}  // namespace
}  // namespace syncrun::test
