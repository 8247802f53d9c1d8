// Nothing outlives the job when the master, `syncrun` or a worker is killed.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <stdexcept>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/support/command_run.hpp"

namespace syncrun::test {
namespace {

constexpr auto kEndLimit = 4500ms;

std::vector<pid_t> workers_of(const CommandRun& run) {
  if (!run.prints("ready") || !run.prints("\n")) throw std::runtime_error("not ready: " + run.errors());
  std::istringstream line(run.output().substr(run.output().find("ready") + 5));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; line >> pid;) pids.push_back(pid);
  if (pids.empty()) throw std::runtime_error("the program has not said who its workers are");
  return pids;
}

/// A job of `world_size` workers in a given state. Each worker has started two processes.
class JobEnd : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string program() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }

  std::vector<std::string> alone() const { return {"--program", program()}; }
  void SetUp() override { ::setenv("SYNCRUN_NPROC_PER_NODE", std::to_string(world_size()).c_str(), 1); }
  void TearDown() override { ::unsetenv("SYNCRUN_NPROC_PER_NODE"); }

  void expect_end(const CommandRun& run, Clock::time_point killed) {
    EXPECT_TRUE(run.nothing_remains());
    const auto took = Clock::now() - killed;
    EXPECT_LT(took, kEndLimit);
    RecordProperty("end_us", std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
  }
};

INSTANTIATE_TEST_SUITE_P(Of, JobEnd, testing::Combine(testing::Values("hang", "idle"), testing::Values(1, 3)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + std::to_string(std::get<1>(test.param));
                         });

/// With an adopting parent, the orphans get a new parent in the session of the master, as under a shell that is the first
/// process of a container. So by the rules of the kernel, their process groups are not orphaned, and the kernel does not
/// continue stopped processes in them.
TEST_P(JobEnd, ByTheMastersDeathWithAllWorkersStoppedOrWithOneAndAnAdoptingParent) {
  for (const bool is_adopted : {false, true}) {
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, is_adopted ? 1 : 0), 0);
    CommandRun run(alone(), {}, own_binary());
    auto stopped = workers_of(run);
    if (is_adopted) stopped = {stopped.back()};
    for (const pid_t pid : stopped) stop(pid);
    const auto killed = Clock::now();
    run.send(SIGKILL);
    expect_end(run, killed);
  }
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

TEST_P(JobEnd, ByAWorkersDeath) {
  CommandRun run(alone(), {}, own_binary());
  const auto pids = workers_of(run);
  const auto killed = Clock::now();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  if (program() == "hang") {
    EXPECT_EQ(run.exit_code(), 1);
    expect_end(run, killed);
  } else {
    // The master has not noticed the loss yet, because it makes no call. But the session is over, so all other
    // processes end.
    EXPECT_TRUE(eventually([&] { return run.processes().size() == 1; }));
    EXPECT_LT(Clock::now() - killed, kEndLimit);
    EXPECT_TRUE(is_alive(run.pid()));
  }
}

/// The workers are in their exit handlers then, and end at the same time for two reasons.
TEST(EndOfWorkers, WithTheMastersDeathLeavesNothing) {
  for (const char* program : {"kill-master-and-wait", "kill-master-and-end"}) {
    for (const char* world_size : {"1", "3"}) {
      ::setenv("SYNCRUN_NPROC_PER_NODE", world_size, 1);
      for (int repeat = 0; repeat < 3; ++repeat) {
        CommandRun run({"--program", program}, {}, own_binary());
        EXPECT_EQ(run.exit_code(), 1000 + SIGKILL) << run.errors();
        EXPECT_TRUE(run.nothing_remains()) << program << " with " << world_size << " workers";
      }
    }
  }
  ::unsetenv("SYNCRUN_NPROC_PER_NODE");
}

TEST(DaemonOfATask, EndsWithSyncrunAndWithTheMaster) {
  for (const bool is_alone : {false, true}) {
    const std::vector<std::string> program{"--program", "task-with-daemon"};
    CommandRun run(is_alone ? program : std::vector<std::string>{own_binary(), program[0], program[1]}, {},
                   is_alone ? own_binary() : "");
    ASSERT_TRUE(run.prints("ready")) << run.errors();
    // The master, the task and its daemon, and syncrun.
    ASSERT_TRUE(eventually([&] { return run.processes().size() == (is_alone ? 3U : 4U); }));
    const auto killed = Clock::now();
    run.send(SIGKILL);
    EXPECT_TRUE(run.nothing_remains());
    EXPECT_LT(Clock::now() - killed, kEndLimit);
  }
}

}  // namespace
}  // namespace syncrun::test
