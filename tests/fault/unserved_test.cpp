// A worker whose program does not call serve_if_worker in time must not run the program.

#include <gmock/gmock.h>

#include "tests/support/command_run.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

TEST(UnservedWorker, IsRefusedASessionAndSaysWhatIsMissing) {
  for (const std::string when : {"never", "late"}) {
    for (const bool is_alone : {true, false}) {
      const std::vector<std::string> arguments =
          is_alone ? std::vector<std::string>{when} : std::vector<std::string>{UNSERVED_PROGRAM, when};
      CommandRun run(arguments, {}, is_alone ? UNSERVED_PROGRAM : "");
      EXPECT_EQ(run.exit_code(), 1) << run.errors();
      EXPECT_THAT(run.errors(),
                  HasSubstr("was lost while starting (phase attach): this process is a worker of another session"));
      EXPECT_THAT(run.errors(), HasSubstr("call syncrun::serve_if_worker(argc, argv) first thing in main"));
      EXPECT_TRUE(run.nothing_remains());
    }
  }
}

TEST(UnservedTask, IsRefusedAndSaysWhatIsMissing) {
  CommandRun run({"task"}, {}, UNSERVED_PROGRAM);
  EXPECT_EQ(run.exit_code(), 1) << run.errors();
  EXPECT_THAT(run.errors(), HasSubstr("task 'unserved' (pid "));
  EXPECT_THAT(run.errors(), HasSubstr("this process is a producer or a task of another one"));
  EXPECT_THAT(run.errors(), HasSubstr("call syncrun::serve_if_worker(argc, argv) first thing in main"));
  EXPECT_TRUE(run.nothing_remains());
}

}  // namespace
}  // namespace syncrun::test
