// Sliced arguments: rows of each worker's own copy, which batch_s and slices select.

#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

class SlicedRows : public OnWorkers {};
INSTANTIATE_ON_WORKERS(SlicedRows, 1, 3);

struct Seen {
  sr::Gather<int, 1> values;
  sr::Avg<double> mean;
};

Seen seen(sr::Sliced<const int, 1> x) {
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  return {.values = {x, {x.rows()}}, .mean = sum / static_cast<double>(x.rows())};
}

TEST_P(SlicedRows, CombineWithScatteredRowsOfTheSameLengths) {
  auto x = session().shared<int, 1>("x");
  x.scatter(counting<int>(12));
  const auto y = session().data(counting<int>(12));
  const auto f = session().function([](sr::Sliced<const int, 1> a, sr::Scattered<const int, 1> b) -> sr::Sum<int> {
    int different = 0;
    for (std::int64_t i = 0; i < a.rows(); ++i) different += a[i] != b[i] ? 1 : 0;
    return different;
  });
  EXPECT_EQ(f(x, y), 0);
  EXPECT_EQ(f(x, y, {.slices = 2}), 0);
  const auto z = session().data(counting<int>(13));
  EXPECT_ERROR(f(x, z), sr::ErrorKind::usage, "argument 0 (Sliced 'x') of");
  EXPECT_ERROR(f(x, y, {.batch = 11}), sr::ErrorKind::usage, "rows of the scattered arguments, but");
}

TEST_P(SlicedRows, OfDifferentLengthsAreAnErrorThatNamesBoth) {
  auto x = session().shared<int, 1>("x");
  auto y = session().shared<int, 1>("y");
  x.broadcast(counting<int>(4));
  y.broadcast(counting<int>(4));
  y.set(0, counting<int>(3), {3});
  const auto f = session().function([](sr::Sliced<const int, 1>, sr::Sliced<const int, 1>) {}, "f");
  EXPECT_ERROR(f(x, y), sr::ErrorKind::usage,
               "argument 1 (Sliced 'y') of 'f' has 3 rows on rank 0, but argument 0 (Sliced 'x') of 'f' has 4");
  f(x, x);
}

TEST_P(SlicedRows, AreThoseOfTheTimeOfTheCall) {
  auto x = session().shared<int, 1>("x");
  x.scatter(counting<int>(12));
  const auto slow = session().function([](sr::CpuWorker& worker) {
    if (worker.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  const auto first_rows = session().function([](sr::CpuWorker& worker, sr::Sliced<const int, 1>) {
    return sr::Gather<std::int64_t, 1>(std::vector{worker.first_row()}, {1});
  });
  static_cast<void>(slow.async());
  auto rows = first_rows.async(x);
  x.set(0, counting<int>(500), {500});  // waits for the calls in flight that use it
  std::vector<std::int64_t> expected;
  for (int rank = 0; rank < world_size(); ++rank) expected.push_back(rank * 12 / world_size());
  EXPECT_EQ(rows.get().to_vector(), expected);
}

TEST_P(SlicedRows, OutOfRangeOnOneRankIsAnErrorThatNamesIt) {
  auto x = session().shared<int, 1>("x");
  x.broadcast(counting<int>(10));
  std::vector<std::vector<int>> lists(static_cast<std::size_t>(world_size()), std::vector<int>{1});
  lists.back() = {10};
  EXPECT_ERROR(session().function(seen)(x, {.batch_s = lists}), sr::ErrorKind::usage,
               "rank " + std::to_string(world_size() - 1));
  // One selection for all, and one rank whose copy is too short for it.
  x.set(world_size() - 1, counting<int>(5), {5});
  const std::string last = "argument 0 (Sliced 'x') of 'seen' on rank " + std::to_string(world_size() - 1);
  EXPECT_ERROR(session().function(seen)(x, {.batch_s = sr::Slice{2, 7}}), sr::ErrorKind::usage,
               "batch_s is the slice [2, 7), but " + last + " has 5 rows");
  EXPECT_ERROR(session().function(seen)(x, {.batch_s = std::vector{0, 9}}), sr::ErrorKind::usage,
               "batch_s has index 9 at position 1, but " + last + " has rows 0 to 4");
  EXPECT_ERROR(session().function(seen)(x, {.batch_s = 6}), sr::ErrorKind::usage, last);
  EXPECT_EQ(session().function(seen)(x, {.batch_s = 5}).values.rows(), 5 * world_size());
  lists.push_back({1});
  EXPECT_ERROR(session().function(seen)(x, {.batch_s = lists}), sr::ErrorKind::usage, "one selection per rank");
}

}  // namespace
