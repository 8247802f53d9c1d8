// One device only.

#include "tests/support/on_workers.hpp"

namespace {

class OnRank : public OnWorkers {};
INSTANTIATE_ON_WORKERS(OnRank, 1, 2, 4);

struct Where {
  sr::Gather<int, 1> ranks;
  sr::Sum<std::int64_t> rows;
};

Where where(sr::CpuWorker& worker, sr::Scattered<const float, 1> x) {
  return {.ranks = {std::vector<int>{worker.rank()}, {1}}, .rows = x.rows()};
}

TEST_P(OnRank, ComputesAllRowsThere) {
  const auto x = session().data(counting<float>(10));
  const auto f = session().function(where);
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto result = f.on_rank(rank)(x);
    EXPECT_EQ(result.ranks.to_vector(), std::vector<int>{rank});
    EXPECT_EQ(result.rows, 10);
  }
}

TEST_P(OnRank, GivesACommunicatorOfOne) {
  const auto f = session().function([](sr::Comm& comm) -> sr::Sum<int> {
    comm.barrier();
    return comm.world_size() + comm.all_reduce(10, sr::Reduction::sum);
  });
  EXPECT_EQ(f.on_rank(world_size() - 1)(), 11);
}

TEST_P(OnRank, RefusesARankThatIsNotThere) {
  const auto f = session().function(where);
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(static_cast<void>(f.on_rank(-1)), sr::ErrorKind::usage, "-1");
  EXPECT_ERROR(f.on_rank(world_size())(x), sr::ErrorKind::usage, "rank from 0 to");
}

}  // namespace
