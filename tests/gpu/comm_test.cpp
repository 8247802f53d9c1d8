// Collectives that a body calls, replay, and ranks that do not join a collective.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

using testing::HasSubstr;

class GpuComm : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuComm);

TEST_P(GpuComm, AveragesByRows) {
  const auto f = session().function(average_in_place);
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(1000));
  for (const std::int64_t rows : {1, 3, 7, 500}) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(i));
    const auto x = session().data(values);
    f(x, v);
    for (int rank = 0; rank < world_size(); ++rank) {
      EXPECT_NEAR(v.get(rank)[999], static_cast<double>(rows - 1) / 2, 1e-4) << rows;
    }
  }
}

TEST_P(GpuComm, ReducesANumberOfTheHosts) {
  EXPECT_EQ(session().function(reduce_number)(), world_size() * (world_size() + 1) / 2);
}

TEST_P(GpuComm, OnOneRankIsACommunicatorOfOne) {
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(3, 2));
  session().function(reduce_in_place).on_rank(world_size() - 1)(v);
  EXPECT_EQ(v.get(world_size() - 1)[0], 2);
}

/// all_reduces of these lengths take different paths. See worker/devices/cuda/peer_kernels.hpp.
constexpr std::size_t kLengths[] = {100, 1'000'000, 5'000'000};

class GpuFault : public OnGpus {
 protected:
  sr::Shared<float, 1> values(std::size_t length = 100'000) {
    auto v = session().shared<float, 1>("v");
    v.broadcast(std::vector<float>(length, 1));
    return v;
  }
  void expect_usable(sr::Shared<float, 1>& v) {
    v.broadcast(std::vector<float>(static_cast<std::size_t>(v.shape(0)[0]), 1));
    session().function(misbehave)(v, 0, Fault::none);
    EXPECT_EQ(v.get(0)[7], static_cast<float>(world_size() * world_size()));
  }
};
INSTANTIATE_ON_GPUS(GpuFault);

TEST_P(GpuFault, AnExceptionFreesThePeersAndTheSessionGoesOn) {
  const int rank = world_size() - 1;
  for (const std::size_t length : kLengths) {
    auto v = values(length);
    const sr::Error error = error_of([&] { session().function(misbehave)(v, rank, Fault::exception); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::function) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_THAT(error.what(), HasSubstr("misbehaved on purpose"));
    expect_usable(v);
  }
}

TEST_P(GpuFault, RanksThatDisagreeAreToldAndTheSessionGoesOn) {
  if (world_size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  // The lengths begin with the longest. Then the path that the straying rank requires has not been set up yet.
  for (const std::size_t length : {kLengths[2], kLengths[1], kLengths[0], kLengths[1], kLengths[2]}) {
    auto v = values(length);
    for (const Fault fault : {Fault::other_length, Fault::leaves}) {
      const sr::Error error = error_of([&] { session().function(misbehave)(v, 1, fault); });
      EXPECT_THAT(error.what(), HasSubstr("ranks disagree in a collective"));
      expect_usable(v);
    }
  }
}

TEST_P(GpuFault, TheFirstCollectiveOfASessionIsCalledOffLikeAnyOther) {
  if (world_size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  const auto first = session().function(misbehave_at_once);
  for (const Fault fault : {Fault::other_length, Fault::exception_behind}) {
    for (const std::size_t length : kLengths) {
      auto v = values(length);
      const auto begin = std::chrono::steady_clock::now();
      const sr::Error error = error_of([&] { first(v, 1, fault); });  // also right after a failed call
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(fault == Fault::other_length ? "ranks disagree" : "misbehaved on purpose"));
    }
  }
  auto v = values();
  expect_usable(v);
}

TEST_P(GpuFault, RanksThatSetUpDifferentThingsAfterAFailureAreTold) {
  if (world_size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  const auto first = session().function(misbehave_at_once);
  for (const std::size_t length : kLengths) {
    auto v = values(length);
    expect_usable(v);
    // After this failure, the ranks have to set up everything again.
    error_of([&] { session().function(misbehave)(v, 1, Fault::exception); });
    const auto begin = std::chrono::steady_clock::now();
    const sr::Error error = error_of([&] { first(v, 1, Fault::other_length); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("ranks disagree"));
    expect_usable(v);
  }
}

TEST_P(GpuFault, ARankWithoutRowsMayWaitLessOften) {
  const auto f = session().function(host_output_between_collectives);
  const auto x = session().data(std::vector<float>(2));  // most ranks get no rows
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(1000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f(x, v, {.slices = 2})[0], 2);
}

TEST_P(GpuFault, AKilledWorkerInACollectiveIsNamed) {
  const int rank = world_size() - 1;
  for (const std::size_t length : kLengths) {
    if (length != kLengths[0]) SetUp();
    auto v = values(length);
    const auto begin = std::chrono::steady_clock::now();
    const sr::Error error = error_of([&] { session().function(misbehave)(v, rank, Fault::kill); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_THAT(error.what(), HasSubstr("SIGKILL"));
    end_session();
  }
}

TEST_P(GpuFault, GpuMemoryGoesWithAKilledWorkersSession) {
  const int with_session = used_gpu_memory_mib();
  if (with_session < 0) GTEST_SKIP() << "nvidia-smi does not say how much memory is in use";
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(256 << 20, 1));  // 1 GiB on every GPU
  EXPECT_GT(used_gpu_memory_mib(), with_session + 900);
  error_of([&] { session().function(misbehave)(v, world_size() - 1, Fault::kill); });
  end_session();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (used_gpu_memory_mib() >= with_session && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_LT(used_gpu_memory_mib(), with_session) << "less than what the open session alone had";
}

TEST_P(GpuFault, AnIllegalAddressIsReportedAsSuchAndEndsTheSession) {
  auto v = values();
  const int rank = world_size() - 1;
  const sr::Error error = error_of([&] { session().function(misbehave)(v, rank, Fault::illegal_address); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::cuda) << error.what();
  EXPECT_EQ(error.rank(), rank);
  EXPECT_THAT(error.what(), HasSubstr("illegal memory access"));
  EXPECT_THAT(error.what(), HasSubstr("context is lost"));
  EXPECT_THAT(error_of([&] { session().function(misbehave)(v, 0, Fault::none); }).what(), HasSubstr("session is over"));
  end_session();
}

TEST_P(GpuFault, AKernelThatNeverEndsIsEndedByTheDeadline) {
  auto v = values();
  const int rank = world_size() - 1;
  const sr::Error error =
      error_of([&] { session().function(misbehave)(v, rank, Fault::hang, {.timeout = std::chrono::seconds(3)}); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::timeout) << error.what();
  end_session();
}

class GpuReplay : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuReplay);

TEST_P(GpuReplay, ComputesWhatTheBodyWould) {
  const auto f = session().function(sr::replayable(scale_and_add));
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(1000, 1));
  float expected = 1;
  for (int i = 0; i < 12; ++i) {
    const std::int64_t rows = 8 + i % 2;
    const auto x = session().data(std::vector<float>(static_cast<std::size_t>(rows), static_cast<float>(i)));
    const auto factor = static_cast<float>(i % 3) * 0.5F;
    const float result = f(x, v, factor);
    expected = expected * factor + static_cast<float>(rows * i);
    ASSERT_FLOAT_EQ(result, expected) << "call " << i;
    ASSERT_FLOAT_EQ(v.get(world_size() - 1)[999], expected) << "call " << i;
  }
}

TEST_P(GpuReplay, TakesInputsThatWereBroughtAhead) {
  const auto f = session().function(sr::replayable(scale_and_add));
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(1000, 1));
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<float>(i));
  const auto x = session().data(values);
  std::vector<std::vector<std::int64_t>> batches;
  std::vector<sr::Future<sr::Avg<float>>> futures;
  std::vector<float> expected;
  for (int call = 0; call < 40; ++call) {
    const auto factor = static_cast<float>(call % 2);
    float sum = 0;
    std::vector<std::int64_t> batch;
    for (std::int64_t i = 0; i < 64; ++i) batch.push_back((i * 37 + call * 11) % 1000);
    for (const auto i : batch) sum += static_cast<float>(i);
    expected.push_back((expected.empty() ? 1 : expected.back()) * factor + sum);
    futures.push_back(f.async(x, v, factor, {.batch = batch}));
  }
  for (std::size_t i = 0; i < futures.size(); ++i) ASSERT_FLOAT_EQ(futures[i].get(), expected[i]) << "call " << i;
}

TEST_P(GpuReplay, SeesWhichVariableIsUpdatedAndWhichFunctionItIs) {
  auto first = session().shared<float, 1>("first");
  auto second = session().shared<float, 1>("second");
  first.broadcast(std::vector<float>(10, 0));
  second.broadcast(std::vector<float>(10, 1000));
  const auto one = session().function(sr::replayable(add_one));
  for (int i = 0; i < 6; ++i) one(first);
  for (int i = 0; i < 6; ++i) one(second);
  EXPECT_EQ(first.get(0)[9], 6);
  EXPECT_EQ(second.get(world_size() - 1)[9], 1006);
  for (int i = 0; i < 6; ++i) {  // each handle is destroyed, and the next one takes its place
    {
      session().function(sr::replayable(add_one))(first);
    }
    { session().function(sr::replayable(add_two))(first); }
  }
  EXPECT_EQ(first.get(0)[9], 6 + 6 * 3);
}

TEST_P(GpuReplay, DoesNotWriteToScratchThatHasMoved) {
  const auto f = session().function(sr::replayable(replayed_array));
  const auto x = session().data(std::vector<float>(8, 1));
  for (int i = 0; i < 6; ++i) f(x);
  session().function(use_scratch)(5'000'000);
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(100, 7));  // perhaps in the memory where the scratch was
  for (int i = 0; i < 6; ++i) EXPECT_EQ(f(x)[1], 8);
  for (const float value : v.get(0)) EXPECT_EQ(value, 7);
}

TEST_P(GpuReplay, WithoutCollectivesGoesOnAfterACommunicatorWasLost) {
  const auto f = session().function(sr::replayable(replayed_array));
  const auto x = session().data(std::vector<float>(8, 1));
  for (int i = 0; i < 6; ++i) f(x);
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(100'000, 1));
  error_of([&] { session().function(misbehave)(v, world_size() - 1, Fault::exception); });
  for (int i = 0; i < 6; ++i) EXPECT_EQ(f(x)[1], 8);
}

TEST_P(GpuReplay, AnIllegalAddressInAGraphFreesThePeers) {
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(100'000, 1));
  const auto f = session().function(sr::replayable(crash_on));
  for (int i = 0; i < 8; ++i) f(v, -1);
  const sr::Error error = error_of([&] { f(v, world_size() - 1); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::cuda) << error.what();
  EXPECT_EQ(error.rank(), world_size() - 1);
  end_session();
}

TEST_P(GpuReplay, GivesArraysAlsoInSlices) {
  const auto f = session().function(sr::replayable(replayed_array));
  for (int i = 0; i < 6; ++i) {
    const auto x = session().data(std::vector<float>(64, static_cast<float>(i)));
    EXPECT_EQ(f(x)[2], 128.0F * static_cast<float>(i));
    EXPECT_EQ(f(x, {.slices = 4})[2], 128.0F * static_cast<float>(i));
  }
}

TEST_P(GpuReplay, RunsNoHostCodeOnceItIsCaptured) {
  const auto f = session().function(sr::replayable(counts_host_runs));
  for (int i = 0; i < 10; ++i) f();
  EXPECT_EQ(session().function(report_host_runs)(), 2 * world_size()) << "once as it is, once to be captured";
}

TEST_P(GpuReplay, SaysWhatCannotBeCapturedAndTheSessionGoesOn) {
  const auto f = session().function(sr::replayable(waits_in_capture));
  f();
  const sr::Error error = error_of([&] { f(); });
  EXPECT_THAT(error.what(), HasSubstr("cannot be captured for replay"));
  EXPECT_EQ(session().function(reduce_number)(), world_size() * (world_size() + 1) / 2);
}

TEST_P(GpuReplay, IsCapturedAnewAfterTheCommunicatorWasLost) {
  const auto f = session().function(sr::replayable(scale_and_add));
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(100'000, 1));
  const auto x = session().data(std::vector<float>(8, 1));
  for (int i = 0; i < 3; ++i) f(x, v, 0.0F);
  error_of([&] { session().function(misbehave)(v, world_size() - 1, Fault::exception); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f(x, v, 0.0F), 8);
}

}  // namespace
}  // namespace gpu_test
