// Collectives that a body calls.

#include "tests/support/on_workers.hpp"

namespace {

class Collective : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Collective, 1, 2, 3, 4, 8);

// Reduces the copy of a shared variable in place, and a vector of the body's own. Both must give the same.
template <class T>
void reduce_own_and_private(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<T, 1> own, sr::Reduction reduction) {
  std::vector<T> mine(own.begin(), own.end());
  comm.all_reduce(own, reduction);
  comm.all_reduce(std::span<T>(mine), reduction);
  for (std::int64_t i = 0; i < own.size(); ++i) {
    if (static_cast<float>(mine[static_cast<std::size_t>(i)]) != static_cast<float>(own[i])) {
      throw std::runtime_error("rank " + std::to_string(worker.rank()) + " differs at " + std::to_string(i));
    }
  }
}

TEST_P(Collective, AllReduceIsTheSameInPlaceAndThroughBuffers) {
  const int n = world_size();
  auto w = session().shared<std::int64_t, 1>("w");
  const auto f = session().function(reduce_own_and_private<std::int64_t>);
  for (const std::int64_t size : {1, 3, 1000, 4096, 4097, 100'000, 300'001}) {
    for (int rank = 0; rank < n; ++rank) {
      w.set(rank, counting<std::int64_t>(static_cast<std::size_t>(size), rank), {size});
    }
    f(w, sr::Reduction::sum);
    for (int rank = 0; rank < n; ++rank) {
      const auto copy = w.get(rank);
      for (const std::int64_t i : {std::int64_t{0}, size / 2, size - 1}) {
        ASSERT_EQ(copy[i], i * n + n * (n - 1) / 2) << "element " << i << " of " << size << " on rank " << rank;
      }
    }
  }
}

TEST_P(Collective, AllReduceTakesEveryReduction) {
  const auto f =
      session().function([](sr::CpuWorker& worker, sr::Comm& comm, sr::Reduction reduction) -> sr::Min<double> {
        return comm.all_reduce(static_cast<double>(worker.rank() + 1), reduction);
      });
  const double n = world_size();
  EXPECT_EQ(f(sr::Reduction::sum), n * (n + 1) / 2);
  EXPECT_EQ(f(sr::Reduction::min), 1);
  EXPECT_EQ(f(sr::Reduction::max), n);
  EXPECT_DOUBLE_EQ(f(sr::Reduction::avg), (n + 1) / 2);
}

TEST_P(Collective, AvgWeightsRanksByTheirRows) {
  const auto f = session().function([](sr::Comm& comm, sr::Scattered<const double, 1> x) -> sr::Max<double> {
    double mean = x.rows() == 0 ? std::numeric_limits<double>::quiet_NaN()
                                : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
    return comm.all_reduce(mean, sr::Reduction::avg);
  });
  EXPECT_NEAR(f(session().data(counting<double>(500))), 249.5, 1e-12);
  EXPECT_NEAR(f(session().data(counting<double>(2))), 0.5, 1e-15) << "ranks without rows do not count";
}

TEST_P(Collective, RunsOnEveryRankAlsoWithoutRows) {
  auto runs = session().shared<int, 1>("runs");
  runs.broadcast(std::vector<int>{0});
  const auto f = session().function([](sr::Comm& comm, sr::Scattered<const float, 1> x, sr::Local<int, 1> count) {
    comm.barrier();
    count[0] += x.rows() >= 0 ? 1 : 0;
  });
  f(session().data(std::vector<float>(3)), runs, {.slices = 3});
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(runs.get(rank)[0], 3);
}

TEST_P(Collective, BroadcastAndAllGather) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm, std::int64_t size) -> sr::Min<int> {
    const int n = comm.world_size();
    std::vector<float> values(static_cast<std::size_t>(size), static_cast<float>(worker.rank()));
    std::vector<float> all(values.size() * static_cast<std::size_t>(n));
    comm.all_gather(std::span<const float>(values), std::span<float>(all));
    bool right = true;
    for (std::size_t i = 0; i < all.size(); ++i) right = right && all[i] == static_cast<float>(i / values.size());
    comm.broadcast(std::span<float>(values), n - 1);
    for (const float v : values) right = right && v == static_cast<float>(n - 1);
    return right ? 1 : 0;
  });
  EXPECT_EQ(f(1), 1);
  EXPECT_EQ(f(600'000), 1);
}

TEST_P(Collective, ManyInARowOverManyCallsInFlight) {
  const auto f = session().function([](sr::Comm& comm, int rounds) -> sr::Min<std::int64_t> {
    std::int64_t sum = 0;
    for (int i = 0; i < rounds; ++i) sum += comm.all_reduce(std::int64_t{i}, sr::Reduction::sum);
    return sum;
  });
  const auto nothing = session().function([] {});
  std::vector<sr::Future<sr::Min<std::int64_t>>> futures;
  for (int i = 0; i < 60; ++i) {
    futures.push_back(f.async(i % 4));
    static_cast<void>(nothing.async());
  }
  constexpr std::int64_t kSums[] = {0, 0, 1, 3};
  for (int i = 0; i < 60; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get(), kSums[i % 4] * world_size());
}

TEST_P(Collective, DisagreementIsAnErrorOnEveryRank) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no other to disagree with";
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Comm& comm) {
        std::vector<float> values(static_cast<std::size_t>(10 + worker.rank()));
        comm.all_reduce(std::span<float>(values), sr::Reduction::sum);
      },
      "uneven");
  EXPECT_ERROR(f(), sr::ErrorKind::function, "ranks disagree in a collective");
  const auto roots = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    std::vector<float> values(6);
    comm.broadcast(values, worker.rank() == 0 ? 0 : 1);
  });
  EXPECT_ERROR(roots(), sr::ErrorKind::function,
               "rank 0 calls broadcast of 6 float32 with root 0, rank 1 calls broadcast of 6 float32 with root 1");
  EXPECT_EQ(session().function([](sr::Comm& comm) -> sr::Max<int> { return comm.all_reduce(1, sr::Reduction::sum); })(),
            world_size());
}

TEST_P(Collective, ARankThatLeavesWithoutOneIsAnErrorAndNotPairedWithALaterCall) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no other to disagree with";
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Comm& comm, bool all) -> sr::Max<int> {
        if (!all && worker.rank() != 0) return 0;
        return comm.all_reduce(all ? 100 : 1, sr::Reduction::sum);
      },
      "partial");
  EXPECT_ERROR(f(false), sr::ErrorKind::function, "has left the call");
  auto first = f.async(false);
  auto second = f.async(true);
  EXPECT_ERROR(first.get(), sr::ErrorKind::function, "has left the call");
  EXPECT_EQ(second.get(), 100 * world_size());
  EXPECT_EQ(f(true), 100 * world_size());
}

TEST_P(Collective, AFailedRankFreesTheOthers) {
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Comm& comm) {
        if (worker.rank() == 0) throw std::runtime_error("not today");
        comm.barrier();
      },
      "absent");
  for (int i = 0; i < 20; ++i) EXPECT_ERROR(f(), sr::ErrorKind::function, "not today");
}

}  // namespace
