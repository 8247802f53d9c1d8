// Sessions. A process has one at a time, one thread uses it at a time, and nothing can use it after it is closed.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/on_workers.hpp"
#include "tests/support/slowdown.hpp"

namespace {

using syncrun::test::kSlowdown;

class SessionOf : public OnWorkers {};
INSTANTIATE_ON_WORKERS(SessionOf, 1, 2);

TEST_P(SessionOf, KnowsItsDevices) {
  EXPECT_EQ(session().world_size(), world_size());
  EXPECT_EQ(session().devices().front(), "cpu0");
  EXPECT_EQ(session().worker_pids().size(), static_cast<std::size_t>(world_size()));
}

/// How much the kernel's out-of-memory killer prefers a process to others.
int oom_score(const std::string& process) {
  int score = -1;
  std::ifstream("/proc/" + process + "/oom_score_adj") >> score;
  return score;
}

TEST_P(SessionOf, LosesAWorkerBeforeItsMasterIfMemoryRunsOut) {
  const int own = oom_score("self");
  for (const auto pid : session().worker_pids()) EXPECT_EQ(oom_score(std::to_string(pid)), std::min(own + 100, 1000));
}

TEST_P(SessionOf, IsTheOnlyOneOfItsProcess) {
  EXPECT_ERROR(sr::Session{options()}, sr::ErrorKind::usage, "live session");
  EXPECT_EQ(session().function([]() -> sr::Sum<int> { return 1; })(), world_size());
}

TEST_P(SessionOf, CanFollowAnother) {
  end_session();
  for (int i = 0; i < 5; ++i) {
    sr::Session next(options());
    EXPECT_EQ(next.function([]() -> sr::Sum<int> { return 1; })(), world_size());
    if (i % 2 == 0) next.close();
  }
}

TEST_P(SessionOf, IsAnErrorToUseAfterClose) {
  auto x = session().data(counting<float>(3));
  auto w = session().shared<float, 1>("w");
  const auto f = session().function([]() -> sr::Sum<int> { return 1; });
  auto future = f.async();
  session().close();
  EXPECT_EQ(future.get(), world_size()) << "close waits for calls in flight";
  EXPECT_ERROR(f(), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR(static_cast<void>(f.async()), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR(static_cast<void>(x.view()), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR(x.set(counting<float>(3)), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR(static_cast<void>(w.get(0)), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR(session().data(counting<float>(3)), sr::ErrorKind::usage, "closed");
  EXPECT_ERROR((session().shared<float, 1>()), sr::ErrorKind::usage, "closed");
  session().close();
}

TEST_P(SessionOf, IsUsedFromOneThreadAtATime) {
  const auto slow = session().function([] { std::this_thread::sleep_for(kSlowdown * std::chrono::milliseconds(300)); });
  std::thread other([&] { slow(); });
  std::this_thread::sleep_for(kSlowdown * std::chrono::milliseconds(100));
  EXPECT_ERROR(slow(), sr::ErrorKind::usage, "one thread at a time");
  other.join();
  slow();
}

TEST_P(SessionOf, SetsTheConventionalVariablesAndHidesItsOwn) {
  const auto f = session().function([](sr::CpuWorker& worker) -> sr::Min<int> {
    const auto is = [](const char* name, int value) {
      const char* text = std::getenv(name);
      return text != nullptr && std::atoi(text) == value;
    };
    const bool right = is("RANK", worker.rank()) && is("LOCAL_RANK", worker.rank()) &&
                       is("WORLD_SIZE", worker.world_size()) && is("LOCAL_WORLD_SIZE", worker.world_size()) &&
                       worker.local_rank() == worker.rank() && worker.local_world_size() == worker.world_size() &&
                       worker.node() == 0 && worker.node_count() == 1;
    bool hidden = true;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      if (text.rfind("SYNCRUN_WORKER", 0) == 0 || text.rfind("SYNCRUN_SEGMENT", 0) == 0 ||
          text.rfind("SYNCRUN_SOCKET", 0) == 0 || text.rfind("SYNCRUN_MASTER", 0) == 0) {
        hidden = false;
      }
    }
    return right && hidden ? 1 : 0;
  });
  EXPECT_EQ(f(), 1);
}

TEST_P(SessionOf, GivesScratchThatStays) {
  const auto f = session().function([](sr::CpuWorker& worker, std::int64_t size) -> sr::Min<float> {
    const auto scratch = worker.scratch<float>(size);
    std::fill(scratch.begin(), scratch.end(), 2.0F);
    return scratch.back();
  });
  for (const int size : {10, 100'000, 50, 1'000'000}) EXPECT_EQ(f(size), 2);
}

TEST(SessionOptions, RefuseWhatMakesNoSense) {
  EXPECT_ERROR(sr::Session({.processes = "0"}), sr::ErrorKind::usage, "0");
  EXPECT_ERROR(sr::Session({.processes = "-1"}), sr::ErrorKind::usage, "-1");
  EXPECT_ERROR(sr::Session({.processes = "many"}), sr::ErrorKind::usage, "many");
  EXPECT_ERROR(sr::Session({.devices = "tpu0"}), sr::ErrorKind::usage, "tpu0");
  EXPECT_ERROR(sr::Session({.devices = "cpu0,cpu0"}), sr::ErrorKind::usage, "cpu0");
  EXPECT_ERROR(sr::Session({.processes = "1", .timeout = std::chrono::milliseconds(-5)}), sr::ErrorKind::usage,
               "timeout");
}

}  // namespace
