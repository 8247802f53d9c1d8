// A lost worker is replaced, on GPUs. Communicators and the peers' memory are made again, and a peer provides the
// variables.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/gradient_bodies.hpp"
#include "tests/gpu/on_gpus.hpp"
#include "tests/gpu/value_bodies.hpp"

namespace gpu_test {
namespace {

using testing::Contains;

/// all_reduces of these lengths take different paths. See worker/devices/cuda/peer_kernels.hpp.
constexpr std::size_t kLengths[] = {100, 1'000'000, 5'000'000};

class GpuRespawn : public OnGpus {
  sr::SessionOptions session_options() const override {
    sr::SessionOptions respawning = options();
    respawning.on_worker_lost = sr::OnWorkerLost::respawn;
    return respawning;
  }
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
}

TEST_P(GpuRespawn, AveragesInBucketsAnew) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no peers";
  constexpr std::int64_t kElements = 3'000'017;
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(std::vector<float>(kElements, 1));
  auto step = sr::train_step<sr::Sgd>(session(), gradient_with_fault, weights, {.bucket_bytes = 4 << 20});
  const auto x = session().data(std::vector<float>(static_cast<std::size_t>(world_size() + 1), 1));
  const int last = world_size() - 1;
  for (int round = 0; round < 3; ++round) {
    weights.broadcast(std::vector<float>(kElements, 1));
    step(x, 0, Fault::none, {.learning_rate = 0.25});
    const auto values = weights.get(last);
    for (const std::int64_t i : {std::int64_t{0}, kElements / 2, kElements - 1}) {
      EXPECT_FLOAT_EQ(values[i], 1 - 0.25F * static_cast<float>(i % 7 + 2)) << i;
    }
    EXPECT_EQ(error_of([&] { step(x, last, Fault::kill, {}); }).kind(), sr::ErrorKind::worker_lost);
  }
}

TEST_P(GpuRespawn, FreesWhatPeersHaveMappedOfTheLostWorker) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no peers";
  constexpr std::int64_t kElements = std::int64_t{1} << 30U;
  const sr::Device first = session().device(0);
  const sr::Device last = session().device(world_size() - 1);
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(3, 1));
  const std::size_t free_before = session().memory(last).free_bytes;
  const auto x = session().function(kept_filled).on(last)(kElements, 7.0F);
  EXPECT_EQ(session().function(last_element_of).on(first)(x)[0], 7);
  const auto lose = session().function(misbehave);
  EXPECT_EQ(error_of([&] { lose(v, world_size() - 1, Fault::kill); }).kind(), sr::ErrorKind::worker_lost);
  EXPECT_GE(session().memory(last).free_bytes + kElements * sizeof(float) / 2, free_before);
  EXPECT_EQ(session().function(last_element_of).on(first)(x)[0], 7) << "the copy of the peer is still there";
  EXPECT_EQ(session().function(last_element_of).on(last)(x)[0], 7);
}

}  // namespace
}  // namespace gpu_test
