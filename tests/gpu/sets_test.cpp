// Calls on some of a session's devices, all of them GPUs. Such a set has a communicator of its own.

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/mixed/mixed_bodies.hpp"

namespace gpu_test {
namespace {

using mixed_test::collect;
using mixed_test::Fault;
using mixed_test::misbehave;
using mixed_test::Operation;
using testing::HasSubstr;

/// The devices of a session, and two ranks of it that are GPUs.
struct Pair {
  const char* devices;
  int gpus;  // how many GPUs the devices are
  int first;
  int second;
};

class GpuSets : public testing::TestWithParam<Pair> {
 protected:
  static constexpr std::size_t kLength = 1001;

  void SetUp() override {
    if (gpus_present() < GetParam().gpus) {
      GTEST_SKIP() << GetParam().gpus << " GPUs wanted, " << gpus_present() << " present";
    }
    session_ = std::make_unique<sr::Session>(
        sr::SessionOptions{.devices = GetParam().devices, .timeout = std::chrono::seconds(60)});
  }
  void TearDown() override {
    if (session_) session_->close();
  }
  sr::Session& session() { return *session_; }
  void end_session() { session_.reset(); }
  std::array<int, 2> ranks() const { return {GetParam().first, GetParam().second}; }
  template <class F>
  auto on_pair(const F& f) {
    return f.on({session().device(ranks()[0]), session().device(ranks()[1])});
  }

  /// A variable in which each rank has the numbers from 1000 times its rank.
  sr::Shared<float, 1> variable(const std::string& name) {
    auto v = session().shared<float, 1>(name);
    fill(v);
    return v;
  }
  void fill(sr::Shared<float, 1>& v) {
    for (int rank = 0; rank < session().world_size(); ++rank) v.set(rank, values_of(rank));
  }
  static std::vector<float> values_of(int rank) {
    std::vector<float> values(kLength);
    for (std::size_t i = 0; i < kLength; ++i) values[i] = static_cast<float>(rank * 1000) + static_cast<float>(i);
    return values;
  }
  std::vector<float> sum_of_pair() const {
    std::vector<float> sum = values_of(ranks()[0]);
    const std::vector<float> other = values_of(ranks()[1]);
    for (std::size_t i = 0; i < kLength; ++i) sum[i] += other[i];
    return sum;
  }
  static std::vector<float> on(sr::Shared<float, 1>& v, int rank) {
    const auto values = v.get(rank);
    return {values.begin(), values.end()};
  }
  /// The elements of the first rank up to the middle, and then those of the second.
  std::vector<float> joined() const {
    std::vector<float> values = values_of(ranks()[0]);
    const std::vector<float> second = values_of(ranks()[1]);
    std::copy(second.begin() + kMiddle, second.end(), values.begin() + kMiddle);
    return values;
  }
  static constexpr std::ptrdiff_t kMiddle = (kLength + 1) / 2;

  /// A placed call without a result returns before it has run.
  template <class Call>
  sr::Error failure_of(Call&& call) {
    return error_of([&] {
      call();
      session().wait();
    });
  }

  void expect_that_collectives_work(sr::Shared<float, 1>& v) {
    fill(v);
    on_pair(session().function(collect<sr::CudaWorker>))(v, v, Operation::all_reduce, 0);
    for (const int rank : ranks()) EXPECT_TRUE(on(v, rank) == sum_of_pair()) << rank;
  }

 private:
  std::unique_ptr<sr::Session> session_;
};

INSTANTIATE_TEST_SUITE_P(Pairs, GpuSets,
                         testing::Values(Pair{"cuda0,cuda1,cpu0", 2, 0, 1}, Pair{"cpu0,cuda0,cpu1,cuda1", 2, 1, 3},
                                         Pair{"cuda0,cuda1,cuda2,cuda3", 4, 1, 3}),
                         [](const auto& pair) {
                           std::string name = pair.param.devices;
                           for (char& c : name) c = c == ',' ? '_' : c;
                           return name;
                         });

TEST_P(GpuSets, Reduce) {
  const auto f = on_pair(session().function(collect<sr::CudaWorker>));
  auto v = variable("v");
  f(v, v, Operation::all_reduce, 0);
  for (int rank = 0; rank < session().world_size(); ++rank) {
    const bool takes_part = rank == ranks()[0] || rank == ranks()[1];
    EXPECT_TRUE(on(v, rank) == (takes_part ? sum_of_pair() : values_of(rank))) << rank;
  }
  for (const int root : {0, 1}) {
    fill(v);
    f(v, v, Operation::reduce, root);
    EXPECT_TRUE(on(v, ranks()[static_cast<std::size_t>(root)]) == sum_of_pair()) << root;
  }
  fill(v);
  f(v, v, Operation::reduce_scatter, 0);
  const auto sum = sum_of_pair();
  const auto first = on(v, ranks()[0]);
  const auto second = on(v, ranks()[1]);
  EXPECT_TRUE(std::equal(sum.begin(), sum.begin() + kMiddle, first.begin()));
  EXPECT_TRUE(std::equal(sum.begin() + kMiddle, sum.end(), second.begin() + kMiddle));
}

TEST_P(GpuSets, MoveValues) {
  const auto f = on_pair(session().function(collect<sr::CudaWorker>));
  auto v = variable("v");
  auto all = variable("all");
  f(v, all, Operation::all_gather, 0);
  for (const int rank : ranks()) EXPECT_TRUE(on(all, rank) == joined()) << rank;
  for (const int root : {0, 1}) {
    fill(all);
    f(v, all, Operation::gather_and_scatter, root);
    EXPECT_TRUE(on(all, ranks()[static_cast<std::size_t>(root)]) == joined()) << root;
    for (const int rank : ranks()) EXPECT_TRUE(on(v, rank) == values_of(rank)) << rank;
  }
  f(v, all, Operation::broadcast, 1);
  for (const int rank : ranks()) EXPECT_TRUE(on(v, rank) == values_of(ranks()[1])) << rank;
}

TEST_P(GpuSets, ReduceLargeOutputs) {
  const auto f = on_pair(session().function(mixed_test::arrays_on_cpu, mixed_test::arrays_on_gpu));
  const auto x = session().data(std::vector<float>{1, 2, 3, 4});
  const auto result = f(x, 100'000);
  EXPECT_EQ(result.mean[0], 2.5F);
  EXPECT_EQ(result.mean[99'999], 2.5F + 99'999 % 5);
  EXPECT_EQ(result.most[99'999], ranks()[1]);
}

TEST_P(GpuSets, AreReplayed) {
  const auto f = on_pair(session().function(sr::replayable(mixed_test::reduce_twice<sr::CudaWorker>)));
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(kLength, 1));
  for (int round = 0; round < 6; ++round) f(v);
  const float expected = 4096;  // 4 to the power of 6
  for (const int rank : ranks()) EXPECT_EQ(on(v, rank), std::vector<float>(kLength, expected)) << rank;
}

TEST_P(GpuSets, MakeANewCommunicatorAfterAFailure) {
  const auto f = on_pair(session().function(misbehave<sr::CudaWorker>));
  auto v = variable("v");
  expect_that_collectives_work(v);
  for (const int rank : ranks()) {
    const sr::Error error = failure_of([&] { f(v, rank, Fault::exception); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::function);
    EXPECT_EQ(error.rank(), rank);
    expect_that_collectives_work(v);
  }
  for (const Fault fault : {Fault::leaves, Fault::other_length}) {
    EXPECT_THAT(failure_of([&] { f(v, ranks()[1], fault); }).what(), HasSubstr("ranks disagree in a collective"));
    expect_that_collectives_work(v);
  }
}

TEST_P(GpuSets, TakeTurnsWithCallsOnAllDevices) {
  const auto f = session().function(collect<sr::CpuWorker>, collect<sr::CudaWorker>);
  auto v = session().shared<float, 1>("v");
  v.broadcast(std::vector<float>(kLength, 1));
  float expected = 1;
  for (int round = 0; round < 5; ++round) {
    on_pair(f)(v, v, Operation::all_reduce, 0);
    f(v, v, Operation::broadcast, ranks()[0]);
    expected *= 2;
  }
  for (int rank = 0; rank < session().world_size(); ++rank) {
    EXPECT_EQ(on(v, rank), std::vector<float>(kLength, expected)) << rank;
  }
}

TEST_P(GpuSets, LoseAWorkerByName) {
  const auto f = on_pair(session().function(misbehave<sr::CudaWorker>));
  auto v = variable("v");
  expect_that_collectives_work(v);
  const sr::Error error = failure_of([&] { f(v, ranks()[1], Fault::kill); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), ranks()[1]);
  end_session();
}

}  // namespace
}  // namespace gpu_test
