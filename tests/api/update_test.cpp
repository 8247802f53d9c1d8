// Update arguments. Slices read the original values, and new values accumulate. They are committed once, and only if
// every rank has returned.

#include <algorithm>

#include "tests/support/on_workers.hpp"

namespace {

class UpdateOf : public OnWorkers {};
INSTANTIATE_ON_WORKERS(UpdateOf, 1, 2, 3);

void add_rows(sr::Scattered<const double, 1> x, sr::Update<sr::op::sum, double, 1> total) {
  total.value()[0] = std::accumulate(x.begin(), x.end(), 0.0);
  total.value()[1] = total.original()[1] + 1;
}

TEST_P(UpdateOf, SumAccumulatesOverSlicesAndSeesTheOriginal) {
  auto total = session().shared<double, 1>("total");
  const auto x = session().data(counting<double>(12));
  const auto f = session().function(add_rows);
  for (const int slices : {1, 2, 4}) {
    total.broadcast(std::vector<double>{0, 10});
    f(x, total, {.slices = slices});
    double sum = 0;
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto own = total.get(rank);
      sum += own[0];
      EXPECT_EQ(own[1], 11 * slices) << "every slice reads the original";
    }
    EXPECT_EQ(sum, 66);
  }
}

TEST_P(UpdateOf, AvgWeightsSlicesByTheirRows) {
  auto mean = session().shared<double, 1>("mean");
  mean.broadcast(std::vector<double>{-1});
  const auto f = session().function([](sr::Scattered<const double, 1> x, sr::Update<sr::op::avg, double, 1> mean) {
    mean.value()[0] = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
  });
  f.on_rank(0)(session().data(std::vector<double>{1, 2, 3, 4, 10}), mean, {.slices = 2});
  EXPECT_DOUBLE_EQ(mean.get(0)[0], 4);
  for (int rank = 1; rank < world_size(); ++rank) EXPECT_EQ(mean.get(rank)[0], -1);
}

TEST_P(UpdateOf, MaxKeepsTheLargest) {
  auto largest = session().shared<int, 1>("largest");
  largest.broadcast(std::vector<int>{0});
  const auto f = session().function([](sr::Scattered<const int, 1> x, sr::Update<sr::op::max, int, 1> largest) {
    largest.value()[0] = *std::max_element(x.begin(), x.end());
  });
  f(session().data(counting<int>(9)), largest, {.slices = 3});
  EXPECT_EQ(largest.get(world_size() - 1)[0], 8);
}

TEST_P(UpdateOf, IsNotCommittedAnywhereIfARankFails) {
  auto total = session().shared<double, 1>("total");
  total.broadcast(std::vector<double>{5});
  const auto f = session().function([](sr::CpuWorker& worker, sr::Update<sr::op::sum, double, 1> total) {
    total.value()[0] = 7;
    if (worker.rank() == worker.world_size() - 1) throw std::runtime_error("after writing");
  });
  EXPECT_ERROR(f(total), sr::ErrorKind::function, "after writing");
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(total.get(rank)[0], 5);
}

TEST_P(UpdateOf, ARankWithoutRowsKeepsItsOriginal) {
  auto total = session().shared<double, 1>("total");
  total.broadcast(std::vector<double>{1, 1});
  session().function(add_rows)(session().data(std::vector<double>{3}), total);
  EXPECT_EQ(total.get(0)[0], 3);
  for (int rank = 1; rank < world_size(); ++rank) EXPECT_EQ(total.get(rank)[0], 1);
}

TEST_P(UpdateOf, AVariableStandsOnceInACall) {
  auto total = session().shared<double, 1>("total");
  total.broadcast(std::vector<double>{1});
  const auto f = session().function([](sr::Local<double, 1>, sr::Update<sr::op::sum, double, 1>) {}, "twice");
  EXPECT_ERROR(f(total, total), sr::ErrorKind::usage, "stands once in a call");
}

}  // namespace
