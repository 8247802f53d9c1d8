// A program that is told to stop ends by itself (stop_requested), and keeps its workers until then.

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/support/command_run.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class Starter : std::uint8_t { nothing, syncrun };

/// The program, with or without `syncrun` in front of it.
class Stop : public testing::TestWithParam<Starter> {
 protected:
  void SetUp() override { ::setenv("SYNCRUN_NPROC_PER_NODE", "2", 1); }
  void TearDown() override { ::unsetenv("SYNCRUN_NPROC_PER_NODE"); }

  static bool is_alone() { return GetParam() == Starter::nothing; }
  static std::vector<std::string> command(const std::string& program) {
    if (is_alone()) return {"--program", program};
    return {own_binary(), "--program", program};
  }
  static std::string image() { return is_alone() ? own_binary() : ""; }
};
INSTANTIATE_TEST_SUITE_P(Of, Stop, testing::Values(Starter::nothing, Starter::syncrun),
                         [](const auto& info) { return info.param == Starter::nothing ? "Program" : "Syncrun"; });

/// The function listens before run(), and so in every process.
TEST_P(Stop, IsRequestedByEachSignalAndTheProgramDecidesHowItEnds) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    CommandRun run(command("stop"), {}, image());
    ASSERT_TRUE(run.prints("ready")) << run.errors();
    run.send(signal);
    EXPECT_EQ(run.exit_code(), kRequeueExitCode) << run.errors();
    EXPECT_THAT(run.output(), HasSubstr("asked by " + std::to_string(signal) + "\n"));
    EXPECT_THAT(run.output(), HasSubstr("3 children end\n"));
    EXPECT_TRUE(run.nothing_remains());
  }
}

/// As a scheduler does that does not know which of the processes is the master.
TEST_P(Stop, WaitsForTheMasterAlsoIfEveryProcessGetsTheSignals) {
  CommandRun run(command("stop"), {}, image());
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  const auto processes = run.processes();
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) {
    for (const pid_t pid : processes) ::kill(pid, signal);
  }
  EXPECT_EQ(run.exit_code(), kRequeueExitCode) << run.errors();
  EXPECT_THAT(run.output(), HasSubstr("3 children end\n"));
  EXPECT_THAT(run.output(), Not(HasSubstr("] asked by"))) << "a worker listens";
}

/// As soon as they exist: workers have not attached yet then.
TEST_P(Stop, IsNotForProcessesThatBegin) {
  CommandRun run(command("stop-at-birth"), {}, image());
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  EXPECT_THAT(run.output(), HasSubstr("the task runs"));
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), kRequeueExitCode) << run.errors();
  EXPECT_THAT(run.output(), HasSubstr("3 children end\n")) << "their own children get the signals";
  EXPECT_TRUE(run.nothing_remains());
}

TEST_P(Stop, HasNoLimitOfTimeUnlessASecondSignalComes) {
  CommandRun run(command("stop-never"), {}, image());
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  run.send(SIGTERM);
  std::this_thread::sleep_for(5500ms);  // longer than --grace
  EXPECT_FALSE(run.processes().empty());
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), is_alone() ? 1000 + SIGTERM : 128 + SIGTERM);
  EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
}

TEST_P(Stop, LeavesTheHandlersOfTheProgram) {
  CommandRun run(command("stop-by-handler"), {}, image());
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  run.send(SIGUSR1);  // it does not stop the program
  ASSERT_TRUE(run.prints("handled 10"));
  run.send(SIGUSR2);
  EXPECT_EQ(run.exit_code(), kRequeueExitCode) << run.errors();
  EXPECT_THAT(run.output(), HasSubstr("asked by 0\n"));
}

TEST_P(Stop, IsTheEndOfAProgramThatDoesNotListen) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    CommandRun run(command("hang"), {}, image());
    ASSERT_TRUE(run.prints("ready")) << run.errors();
    run.send(signal);
    EXPECT_EQ(run.exit_code(), is_alone() ? 1000 + signal : 128 + signal);
    EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
  }
}

TEST_P(Stop, HasAGivenLimit) {
  if (is_alone()) GTEST_SKIP() << "a limit is an option of syncrun";
  CommandRun run({"--grace", "0.5", own_binary(), "--program", "stop-never"});
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_THAT(run.last_error_line(), HasSubstr("killed since it had not ended 0.5 s later"));
}

}  // namespace
}  // namespace syncrun::test
