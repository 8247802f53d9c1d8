// Programs that fail, with and without `syncrun`: the exit code, and that the last line of standard error is the first
// cause. Also programs that do not call serve_if_worker in time.

#include <gmock/gmock.h>

#include <csignal>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/support/command_run.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

enum class Front : std::uint8_t { nothing, syncrun };

class FailedProgram : public testing::TestWithParam<Front> {
 protected:
  void SetUp() override { ::setenv("SYNCRUN_NPROC_PER_NODE", "2", 1); }
  void TearDown() override { ::unsetenv("SYNCRUN_NPROC_PER_NODE"); }

  /// Runs the program until it ends and returns the last line of its standard error.
  std::string last_line(const std::string& what, int exit_code) {
    const std::vector<std::string> alone{"--program", "fail", what};
    std::vector<std::string> after_syncrun{own_binary()};
    after_syncrun.insert(after_syncrun.end(), alone.begin(), alone.end());
    const bool is_alone = GetParam() == Front::nothing;
    CommandRun run(is_alone ? alone : after_syncrun, {}, is_alone ? own_binary() : "");
    run.expect_end(exit_code);
    errors_ = run.errors();
    return run.last_error_line();
  }
  std::string errors_;
};
INSTANTIATE_TEST_SUITE_P(Behind, FailedProgram, testing::Values(Front::nothing, Front::syncrun),
                         [](const auto& test) { return test.param == Front::nothing ? "Nothing" : "Syncrun"; });

TEST_P(FailedProgram, SaysWhyLast) {
  EXPECT_EQ(last_line("throw", 1), "syncrun: the program's own failure");
  EXPECT_EQ(last_line("throw-number", 1),
            "syncrun: the program threw an exception that is not a std::exception, of type int: 17");
  EXPECT_EQ(last_line("throw-speechless", 1),
            "syncrun: an exception of type syncrun::test::Speechless without a text (what() is null)");
  EXPECT_EQ(last_line("throw-lines", 1), "  [rank 9] another") << "this is no tag";
  EXPECT_THAT(errors_, HasSubstr("syncrun: one line\n"));
  // The exception of a forked child goes through the same handler. It must not be the last message of the program.
  EXPECT_EQ(last_line("child-throws", 1), "syncrun: the program's own failure");
  EXPECT_THAT(errors_, HasSubstr("syncrun: a child's failure\n"));
  last_line("return", 42);
}

TEST_P(FailedProgram, WhoseFunctionThrowsSaysWhereLast) {
  const std::string line = last_line("throw-in-function", 1);
  EXPECT_THAT(line, StartsWith("syncrun: rank 0 (cpu0, pid "));
  EXPECT_THAT(line, HasSubstr("failed in call 'f' (phase function): the function's own failure"));
  EXPECT_THAT(errors_, HasSubstr("[rank 0] rank 0 says something\n"));
}

TEST_P(FailedProgram, ThatLosesAWorkerSaysWhyAndItsLastLines) {
  last_line("lose-worker", 1);
  const auto verdict = errors_.rfind("syncrun: rank 0 (cpu0, pid ");
  ASSERT_NE(verdict, std::string::npos) << errors_;
  EXPECT_THAT(errors_.substr(verdict),
              HasSubstr("was lost in call 'f' (phase function): killed by SIGSEGV (Segmentation fault)"));
  EXPECT_THAT(errors_.substr(verdict), HasSubstr("[rank 0] rank 0 says something"));
}

// ---- programs that do not serve ----------------------------------------------------------------------------------

TEST(UnservedWorker, IsRefusedASessionAndSaysWhatIsMissing) {
  for (const std::string when : {"never", "late"}) {
    for (const bool is_alone : {true, false}) {
      const std::vector<std::string> arguments =
          is_alone ? std::vector<std::string>{when} : std::vector<std::string>{UNSERVED_PROGRAM, when};
      CommandRun run(arguments, {}, is_alone ? UNSERVED_PROGRAM : "");
      run.expect_end(1);
      EXPECT_THAT(run.errors(),
                  HasSubstr("was lost while starting (phase attach): this process is a worker of another session"));
      EXPECT_THAT(run.errors(), HasSubstr("call syncrun::serve_if_worker(argc, argv) first thing in main"));
    }
  }
}

TEST(UnservedTask, IsRefusedAndSaysWhatIsMissing) {
  CommandRun run({"task"}, {}, UNSERVED_PROGRAM);
  run.expect_end(1);
  EXPECT_THAT(run.errors(), HasSubstr("task 'unserved' (pid "));
  EXPECT_THAT(run.errors(), HasSubstr("this process is a producer or a task of another one"));
  EXPECT_THAT(run.errors(), HasSubstr("call syncrun::serve_if_worker(argc, argv) first thing in main"));
}

}  // namespace
}  // namespace syncrun::test
