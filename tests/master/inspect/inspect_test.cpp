// syncrun top, stacks and attach, which look at real jobs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/support/command_run.hpp"
#include "tests/support/gdb.hpp"

namespace syncrun::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// A debugger takes some seconds to start if other tests use the cores.
constexpr std::chrono::seconds kLongestLook{120};

/// A job of three workers that has written `sign`, and the words that choose it.
class Job {
 public:
  Job(const std::vector<std::string>& program, const std::string& sign, const std::string& timeout = "0")
      : run_(words(program, timeout)) {
    EXPECT_TRUE(run_.prints(sign)) << run_.errors();
  }
  /// Runs a subcommand for this job to its end.
  std::unique_ptr<CommandRun> look(std::vector<std::string> command) const {
    command.insert(command.begin() + 1, {"--pid", std::to_string(run_.pid())});
    return std::make_unique<CommandRun>(command);
  }
  /// Whether `syncrun top` shows a match of each expression. Looks several times, because a rank of a busy machine may
  /// finish no call within one look.
  bool top_shows(const std::vector<std::string>& expressions) const {
    return eventually([&] {
      const auto top = look({"top", "--once"});
      EXPECT_EQ(top->exit_code(), 0) << "the job has ended: " << top->errors();
      std::printf("%s", top->output().c_str());
      return std::all_of(expressions.begin(), expressions.end(), [&](const std::string& expression) {
        return testing::Matches(ContainsRegex(expression))(top->output());
      });
    });
  }

 private:
  static std::vector<std::string> words(std::vector<std::string> program, const std::string& timeout) {
    program.insert(program.begin(), {"-n", "3", "--timeout", timeout, DEBUGGED_PROGRAM});
    return program;
  }
  CommandRun run_;
};

TEST(Top, ShowsWhatEachRankDoesAndHowMuch) {
  const Job job({"loop"}, "1000 rows");
  // Calls and rows per second are above 0.
  const std::string line =
      " +[0-9]+  cpu[0-9]+ +[a-z]+ +[^ ]+ +[0-9]+% +[1-9][0-9.]*[kM]? +[1-9][0-9.]*[kM]? +[0-9.]+MB +-\n";
  EXPECT_TRUE(job.top_shows({"debugged_program loop [(]pid ", "phase", "   0" + line, "   1" + line, "   2" + line}));
}

TEST(Top, ShowsWhichRankWorksWhileTheOthersWait) {
  const Job job({"hang", "1"}, "hangs");
  const auto top = job.look({"top", "--interval", "0.1"});
  const auto shows = [&](const char* rank, const char* percent) {
    return testing::Matches(ContainsRegex(std::string("\n   ") + rank + "[^\n]* hang +" + percent + " "))(
        top->output());
  };
  EXPECT_TRUE(eventually([&] { return shows("0", "0%") && shows("1", "100%") && shows("2", "0%"); })) << top->output();
}

TEST(Top, NamesTheCallInWhichARankHangsAndEndsWithTheJob) {
  auto job = std::make_unique<Job>(std::vector<std::string>{"hang", "1"}, "hangs");
  const auto top = job->look({"top", "--interval", "0.1"});
  const auto shows = testing::Matches(AllOf(HasSubstr("function    hang "), HasSubstr("collective  hang ")));
  EXPECT_TRUE(eventually([&] { return shows(top->output()); })) << top->output();
  job.reset();
  EXPECT_EQ(top->exit_code(), 0);
  EXPECT_THAT(top->output(), HasSubstr("the job has ended\n"));
}

TEST(Stacks, AreThoseOfTheProgramAndOfAllWorkers) {
  const Job job({"hang", "1"}, "hangs");
  const auto stacks = job.look({"stacks"});
  const int code = stacks->exit_code(kLongestLook);
  if (stacks->output().find("no stack: ") != std::string::npos) {
    EXPECT_EQ(code, 1);
    GTEST_SKIP() << "stacks cannot be taken here: " << stacks->errors();
  }
  EXPECT_EQ(code, 0) << stacks->errors();
  EXPECT_THAT(
      stacks->output(),
      AllOf(HasSubstr("debugged_program hang 1 (pid "), HasSubstr("hang_here (debugged_program)"),
            HasSubstr(") is in phase function, call 'hang'"), HasSubstr(") is in phase collective, call 'hang'")));
}

TEST(Attach, StartsGdbWithTheWorkerOfTheRank) {
  if (!gdb_works()) GTEST_SKIP() << "gdb is not installed or may not trace processes";
  const Job job({"hang", "1"}, "hangs");
  const auto gdb = job.look({"attach", "1", "--", "-batch", "-ex", "bt"});
  EXPECT_EQ(gdb->exit_code(kLongestLook), 0) << gdb->errors();
  EXPECT_THAT(gdb->output(), HasSubstr("in hang_here ()"));
  const auto unknown = job.look({"attach", "3"});
  unknown->expect_end(2);
  EXPECT_THAT(unknown->last_error_line(), HasSubstr("syncrun attach: expected a rank from 0 to 2, got '3'"));
}

TEST(Attach, PausesDeadlines) {
  if (!gdb_works()) GTEST_SKIP() << "gdb is not installed or may not trace processes";
  const Job job({"loop"}, "1000 rows", "2");
  const auto gdb = job.look({"attach", "1", "--", "-batch", "-ex", "shell sleep 4.5"});
  EXPECT_EQ(gdb->exit_code(kLongestLook), 0) << gdb->errors();
  EXPECT_TRUE(job.top_shows({"   1 +[0-9]+  cpu1 .*% +[1-9]"})) << "calls per second";
}

TEST(Inspect, ListsTheJobsIfItIsNotClearWhichOneIsMeant) {
  const Job one({"hang", "0"}, "hangs");
  const Job two({"hang", "1"}, "hangs");
  CommandRun top({"top", "--once"});
  top.expect_end(2);
  EXPECT_THAT(top.errors(), AllOf(HasSubstr("choose one of these with --pid:"), HasSubstr("debugged_program hang 0\n"),
                                  HasSubstr("debugged_program hang 1\n")));
  CommandRun other({"stacks", "--pid", "1"});
  other.expect_end(2);
  EXPECT_THAT(other.errors(), HasSubstr("--pid 1: expected the process of a syncrun or of its program"));
}

}  // namespace
}  // namespace syncrun::test
