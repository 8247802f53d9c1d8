// Standard streams that are closed, full or without a reader. No descriptor of Syncrun takes their numbers, and the
// program computes the right result.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Streams : public OnBothFronts {
 protected:
  Arguments program() const { return {"streams", folder_.at("streams")}; }
  OddRun run_with(const std::function<void()>& in_child) const { return run_after(in_child, GetParam(), program()); }
  void expect_right_sum() const { EXPECT_THAT(text_of(folder_.at("streams")), HasSubstr("\n1048576\n")); }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_BOTH_FRONTS(Streams);

TEST_P(Streams, ThatAreClosedAreNeverTakenByUs) {
  for (const int closed : {1, 2, 4, 7}) {  // a bit for each of the three streams
    SCOPED_TRACE(closed);
    const auto is_closed = [=](int fd) { return (closed >> fd & 1) != 0; };
    OddRun run = run_with([=] {
      for (int fd = 0; fd <= 2; ++fd) {
        if (is_closed(fd)) ::close(fd);
      }
    });
    run.expect_end(0);
    expect_right_sum();
    const std::string master = text_of(folder_.at("streams"));
    for (int fd = 0; fd <= 2; ++fd) {
      if (!is_closed(fd)) continue;
      EXPECT_THAT(master, HasSubstr(std::to_string(fd) + " /dev/null"));
    }
    for (const char* of : {"streams", "streams.0", "streams.1"}) {
      for (const char* words : {"memfd:syncrun", "anon_inode", "closed"})
        EXPECT_THAT(text_of(folder_.at(of)), Not(HasSubstr(words)));
    }
    // The lines of workers go through the master, whatever its streams are.
    for (const char* words : {"1 pipe:", "2 pipe:"}) EXPECT_THAT(text_of(folder_.at("streams.1")), HasSubstr(words));
    if (!is_closed(1)) {
      EXPECT_THAT(run.output(), HasSubstr("a line from the master\n"));
      EXPECT_THAT(run.output(), HasSubstr("[rank 1] a line from rank 1\n"));
    }
    if (!is_closed(2)) {
      EXPECT_THAT(run.errors(), HasSubstr("[rank 1] an error line from rank 1\n"));
    }
  }
}

void replace(int fd, const char* file) {
  const int opened = ::open(file, O_RDWR | O_CLOEXEC);
  require(opened >= 0 && ::dup2(opened, fd) == fd);
}

/// Replaces the descriptor by a pipe that has no reader.
void replace_by_dead_pipe(int fd) {
  std::array<int, 2> ends{};
  require(::pipe2(ends.data(), O_CLOEXEC) == 0 && ::dup2(ends[1], fd) == fd);
  ::close(ends[0]);
}

TEST_P(Streams, OnAFullDiskLoseOutputAndNothingElse) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    OddRun run = run_with([=] { replace(fd, "/dev/full"); });
    run.expect_end(0);
    expect_right_sum();
  }
}

TEST_P(Streams, WithoutAReaderEndTheProgramAsAnyOther) {
  OddRun run = run_with([] { replace_by_dead_pipe(STDOUT_FILENO); });
  run.expect_end(GetParam() == Front::nothing ? 1000 + SIGPIPE : 128 + SIGPIPE);
  EXPECT_THAT(run.errors(), Not(HasSubstr("SIGPIPE"))) << "`| head -1` is no failure";
}

TEST_P(Streams, WithoutAReaderDoNotHoldUpWhoIgnoresSigpipe) {
  OddRun run = run_with([] {
    replace_by_dead_pipe(STDOUT_FILENO);
    ::signal(SIGPIPE, SIG_IGN);
  });
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  expect_right_sum();
  EXPECT_THAT(run.errors(), HasSubstr("[rank 0] an error line from rank 0\n"));
}

/// A process in the background that reads the terminal is stopped. Workers and tasks lead groups of their own, so they are
/// always in the background.
TEST_P(Streams, OfWorkersAndTasksAreNoTerminal) {
  Start start;
  start.on_terminal = true;
  OddRun run(GetParam(), {"read-input"}, start);
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_EQ(run.output(), "0 and 0 bytes\n");
}

TEST_P(Streams, ShowThePartOfALineThatAWorkerWroteBeforeItDied) {
  OddRun run(GetParam(), {"die", std::to_string(SIGKILL)});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.errors(), HasSubstr("[rank 1] half a line\n")) << "as soon as it is known";
  EXPECT_THAT(run.errors(), HasSubstr("\n  [rank 1] half a line\n")) << "in the error";
}

TEST(LogFile, OnAFullDiskIsNamedOnceAndInTheVerdict) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount a small disk";
  const TemporaryFolder folder;
  Start start;
  start.in_child = [&] { mount_over(folder.path(), "size=64k"); };
  CommandRun run({"--quiet", "--log-dir", folder.path(), ODD_PROGRAM, "print", "20000"}, start);
  EXPECT_EQ(run.exit_code(), 1);
  const std::string log =
      "--log-dir: the log file " + folder.at("rank1.log") + " lacks lines: cannot write it: No space left on device\n";
  EXPECT_THAT(run.errors(), HasSubstr("syncrun: " + log));
  EXPECT_THAT(run.errors(), HasSubstr("\nsyncrun: the program fails\n"));
  EXPECT_THAT(run.errors(), HasSubstr("\n  " + log)) << "in the verdict";
  EXPECT_EQ(run.errors().find("syncrun: " + log), run.errors().rfind("syncrun: " + log)) << "once";
}

TEST(SigpipeOfAnotherPipe, IsNamed) {
  Start start;
  start.in_child = [] { ::signal(SIGPIPE, SIG_DFL); };
  CommandRun run({"--quiet", ODD_PROGRAM, "break-a-pipe"}, start);
  EXPECT_EQ(run.exit_code(), 128 + SIGPIPE);
  EXPECT_THAT(run.last_error_line(), HasSubstr("was killed by SIGPIPE (Broken pipe)"));
}

TEST_P(Streams, WhoseErrorsHaveNoReaderDoNotHoldUpTheProgram) {
  OddRun run = run_with([] {
    replace_by_dead_pipe(STDERR_FILENO);
    ::setenv("SYNCRUN_QUIET", "1", 1);  // or the master itself writes the line that lists ranks and devices
  });
  EXPECT_EQ(run.exit_code(), 0) << "only workers' lines go there, and who passes them on does not die of it";
  expect_right_sum();
  EXPECT_THAT(run.output(), HasSubstr("a line from the master\n"));
}

TEST_P(Streams, OfATerminalDoNotStopABackgroundJob) {
  const std::string front = GetParam() == Front::syncrun ? std::string(SYNCRUN_COMMAND) + " " : "";
  // -m gives a job in the background a process group of its own. Such a job is stopped when it reads from the terminal.
  CommandRun run(
      {"-mc", front + ODD_PROGRAM + " streams '" + folder_.at("streams") + "' & wait $!; echo ended with $?"},
      {.on_terminal = true}, "/bin/sh");
  run.expect_end(0);
  EXPECT_THAT(run.output(), HasSubstr("ended with 0\n"));
  expect_right_sum();
}

}  // namespace
}  // namespace syncrun::test
