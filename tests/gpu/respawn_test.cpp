// A lost worker is replaced, on GPUs: communicators and the peers' memory are made anew, variables come from a peer.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

using testing::Contains;
using testing::HasSubstr;

/// all_reduces of these lengths go different ways: see worker/cuda/peer_kernels.hpp.
constexpr std::size_t kLengths[] = {100, 1'000'000, 5'000'000};

class GpuRespawn : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const char* only = std::getenv("SYNCRUN_TEST_GPUS");
    if (only != nullptr && std::atoi(only) != GetParam()) GTEST_SKIP() << "SYNCRUN_TEST_GPUS is " << only;
    if (GetParam() > gpus_present()) GTEST_SKIP() << GetParam() << " GPUs wanted, " << gpus_present() << " present";
    sr::SessionOptions options;
    for (int i = 0; i < GetParam(); ++i) options.devices += (i == 0 ? "cuda" : ",cuda") + std::to_string(i);
    options.timeout = std::chrono::seconds(20);
    options.on_worker_lost = sr::OnWorkerLost::respawn;
    session_ = std::make_unique<sr::Session>(options);
  }
  sr::Session& session() { return *session_; }
  int world_size() const { return GetParam(); }

 private:
  std::unique_ptr<sr::Session> session_;
};
INSTANTIATE_ON_GPUS(GpuRespawn);

TEST_P(GpuRespawn, GoesOnAfterAKillInACollectiveOfAnyLength) {
  auto kept = session().shared<float, 1>("kept");
  kept.broadcast(std::vector<float>{1, 2, 3});
  const auto f = session().function(misbehave);
  for (const std::size_t length : kLengths) {
    auto v = session().shared<float, 1>("v" + std::to_string(length));
    v.broadcast(std::vector<float>(length, 1));
    const int rank = world_size() - 1;
    const sr::Error error = error_of([&] { f(v, rank, Fault::kill); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_EQ(error.failure().respawned_pid, session().worker_pids().back());
    EXPECT_THAT(error.failure().undefined, Contains(v.name()));
    if (world_size() > 1) {
      EXPECT_THAT(error.failure().restored, Contains("kept"));
      EXPECT_EQ(kept.get(rank)[2], 3);
    } else {
      kept.broadcast(std::vector<float>{1, 2, 3});
    }
    v.broadcast(std::vector<float>(length, 1));
    f(v, 0, Fault::none);
    EXPECT_EQ(v.get(rank)[7], static_cast<float>(world_size() * world_size()));
  }
  session().close();
}

TEST_P(GpuRespawn, CapturesReplayedFunctionsAnew) {
  auto v = session().shared<float, 1>("v");
  const auto f = session().function(sr::replayable(reduce_in_place));
  const auto lose = session().function(misbehave);
  for (int round = 0; round < 3; ++round) {
    v.broadcast(std::vector<float>(1000, 1));
    for (int call = 0; call < 3; ++call) f(v);
    for (int rank = 0; rank < world_size(); ++rank) {
      EXPECT_EQ(v.get(rank)[999], static_cast<float>(world_size() * world_size() * world_size())) << round;
    }
    EXPECT_EQ(error_of([&] { lose(v, 0, Fault::kill); }).kind(), sr::ErrorKind::worker_lost);
  }
  session().close();
}

}  // namespace
}  // namespace gpu_test
