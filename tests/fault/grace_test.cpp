// After a request to end, `syncrun` ends within the grace period, even if other processes refuse to end.

#include <csignal>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/support/command_run.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

/// Allowed in addition to the grace period: for the kill itself, and because other programs may use the machine.
constexpr auto kSlack = 3500ms;

struct Ended {
  std::chrono::milliseconds took;
  int exit_code;
  std::string last_line;
};

class Grace : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { ::setenv("SYNCRUN_NPROC_PER_NODE", std::to_string(GetParam()).c_str(), 1); }
  void TearDown() override { ::unsetenv("SYNCRUN_NPROC_PER_NODE"); }

  /// Sends SIGTERM to a job in the middle of a call. Returns when `syncrun` and all other processes have ended.
  Ended end_of(const std::string& program, const std::string& grace) {
    CommandRun run({"--grace", grace, own_binary(), "--program", program});
    EXPECT_TRUE(run.prints("ready")) << run.errors();
    const auto asked = Clock::now();
    run.send(SIGTERM);
    const int code = run.exit_code();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - asked);
    EXPECT_TRUE(run.processes().empty()) << "`syncrun` is the last to go";
    RecordProperty("end_ms", std::to_string(took.count()));
    return {took, code, run.last_error_line()};
  }
};
INSTANTIATE_WITH_WORKERS(Grace);

TEST_P(Grace, IsNotUsedUpByAProgramThatHangsInACallNorByWorkersThatIgnoreIt) {
  for (const char* program : {"hang", "stubborn-workers"}) {
    const Ended end = end_of(program, "10");
    EXPECT_EQ(end.exit_code, 128 + SIGTERM);
    EXPECT_LT(end.took, 10s);
    EXPECT_EQ(end.last_line, "syncrun: stopped by SIGTERM (Terminated)");
  }
}

TEST_P(Grace, EndsAJobThatIgnoresIt) {
  const Ended end = end_of("stubborn-job", "1");
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_GE(end.took, 1s);
  EXPECT_LT(end.took, 1s + kSlack);
  EXPECT_THAT(end.last_line, HasSubstr("stopped by SIGTERM (Terminated), and killed since it had not ended 1 s later"));
}

TEST_P(Grace, EndsAJobWhoseProcessesAreAllStopped) {
  CommandRun run({"--grace", "1", own_binary(), "--program", "hang"});
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  for (const pid_t pid : run.processes()) {
    if (pid != run.pid()) ::kill(pid, SIGSTOP);
  }
  const auto asked = Clock::now();
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_LT(Clock::now() - asked, 1s + kSlack);
  EXPECT_TRUE(run.processes().empty());
}

}  // namespace
}  // namespace syncrun::test
