// Sessions: their devices, processes and variables.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/on_workers.hpp"

namespace {

class SessionOf : public OnWorkers {};
INSTANTIATE_ON_WORKERS(SessionOf, 1, 2);

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

}  // namespace
