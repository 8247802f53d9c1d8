// `syncrun --max-restarts`: when it restarts a program, and when it does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kCause = "the program exited with code 3";

std::string failed_with(const std::string& cause, int restart, int most) {
  return "syncrun: restart " + std::to_string(restart) + " of " + std::to_string(most) + ", after: " + cause + "\n";
}

TEST(Restart, GoesOnUntilTheProgramEndsWell) {
  CommandRun run({"--max-restarts", "5", scripted_program(), "fail-times", "2"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "restart none\nrestart 1\nrestart 2\n");
  EXPECT_EQ(run.errors(), failed_with(kCause, 1, 5) + failed_with(kCause, 2, 5));
  EXPECT_TRUE(run.processes().empty());
}

TEST(Restart, EndsWithTheLastFailure) {
  CommandRun run({"--max-restarts", "1", scripted_program(), "fail-times", "9"});
  EXPECT_EQ(run.exit_code(), 3);
  EXPECT_EQ(run.output(), "restart none\nrestart 1\n");
  EXPECT_EQ(run.errors(), failed_with(kCause, 1, 1) + "syncrun: " + kCause + "\n");
}

TEST(Restart, AddsItsOwnToThoseOfAScript) {
  CommandRun run({"--restart", "4", "--max-restarts", "2", scripted_program(), "fail-times", "6"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "restart 4\nrestart 5\nrestart 6\n");
  EXPECT_EQ(run.errors(), failed_with(kCause, 1, 2) + failed_with(kCause, 2, 2));
}

TEST(Restart, IsNotThereUnlessAskedFor) {
  ::setenv("SYNCRUN_RESTART", "7", 1);  // as if this `syncrun` ran under another one
  CommandRun run({scripted_program(), "fail-times", "1"});
  ::unsetenv("SYNCRUN_RESTART");
  EXPECT_EQ(run.exit_code(), 3);
  EXPECT_EQ(run.output(), "restart none\n");
}

TEST(Restart, FollowsASignalThatKilledTheMaster) {
  CommandRun run({"--max-restarts", "1", scripted_program(), "crash"});
  EXPECT_EQ(run.exit_code(), 128 + SIGSEGV);
  EXPECT_THAT(run.errors(), HasSubstr("syncrun: restart 1 of 1, after: the master (pid "));
}

TEST(Restart, NamesTheVerdictInOneLine) {
  CommandRun run({"--max-restarts", "1", scripted_program(), "verdict", "rank 2 was lost\nits last words"});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_EQ(run.errors(), failed_with("rank 2 was lost", 1, 1) + "syncrun: rank 2 was lost\n  its last words\n");
}

TEST(Restart, ComesWhenNothingOfTheFormerIsLeft) {
  const TemporaryFolder folder;
  CommandRun run({"--max-restarts", "1", scripted_program(), "look-for-former", folder.at("former")});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "restart none\nrestart 1\nis gone\nis gone\n");
  EXPECT_TRUE(run.processes().empty());
}

TEST(Restart, IsNotForProgramsThatRefuseTheirArguments) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "exit", "2"});
  EXPECT_EQ(run.exit_code(), 2);
  EXPECT_EQ(run.errors(), "syncrun: the program exited with code 2\n");
}

TEST(Restart, IsNotForProgramsThatAreNoneOfOurs) {
  for (const std::string code : {"0", "3"}) {
    CommandRun run({"--max-restarts", "3", scripted_program(), "exit-without-hello", code});
    EXPECT_EQ(run.exit_code(), code == "0" ? 125 : 3);
    EXPECT_THAT(run.errors(), Not(HasSubstr("restart")));
  }
}

TEST(Restart, IsNotForProgramsThatEndWell) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "exit", "0"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.errors(), "");
}

TEST(Restart, IsNotForProgramsThatWereToldToStopInAnotherWay) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "exit", "75"});
  EXPECT_EQ(run.exit_code(), 75);
  EXPECT_THAT(run.errors(), Not(HasSubstr("restart")));
}

TEST(Restart, IsNotForProgramsThatWereAskedToStop) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "ignore-requests"});
  ASSERT_TRUE(run.prints("ready"));
  run.send(SIGTERM);
  run.send(SIGINT);
  run.exit_code();
  EXPECT_THAT(run.errors(), Not(HasSubstr("restart")));
}

TEST(Restart, StopsForGoodAtASignalWhileItWaits) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "fail-once"});
  ASSERT_TRUE(eventually([&] { return run.errors().find("restart 1 of 3") != std::string::npos; }));
  run.send(SIGINT);  // arrives during the second before the restart or, on a busy machine, in the restarted program
  EXPECT_EQ(run.exit_code(), 128 + SIGINT);
  EXPECT_EQ(run.last_error_line(), "syncrun: stopped by SIGINT (Interrupt)");
  EXPECT_TRUE(run.processes().empty());
}

TEST(Restart, StopsForGoodAtASignalAfterwards) {
  CommandRun run({"--max-restarts", "3", scripted_program(), "fail-once"});
  ASSERT_TRUE(run.prints("ready"));
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(run.output(), "restart none\nrestart 1\nready\n");
  EXPECT_EQ(run.last_error_line(), "syncrun: stopped by SIGTERM (Terminated)");
}

}  // namespace
}  // namespace syncrun::test
