// Shared variables, as the master uses them, and Sliced arguments: rows of each worker's own copy.

#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

class SharedVariable : public OnWorkers {};
INSTANTIATE_ON_WORKERS(SharedVariable, 1, 3);

TEST_P(SharedVariable, SetsSelectedRowsOnOneRank) {
  auto w = session().shared<float, 2>();
  const auto values = counting<float>(8);
  const int last = world_size() - 1;
  w.set(last, values, sr::Shape{4, 2}, {.batch = std::vector{3, 0, 3}});
  EXPECT_EQ(w.get(last).to_vector(), (std::vector<float>{6, 7, 0, 1, 6, 7}));
  EXPECT_EQ(w.shape(last), (sr::Shape{3, 2}));
  w.set(last, session().data(values, sr::Shape{4, 2}), {.batch = sr::Slice{1, 3}});
  EXPECT_EQ(w.get(last).to_vector(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_ERROR(w.set(last, values, sr::Shape{4, 2}, {.batch = std::vector{4}}), sr::ErrorKind::usage,
               "batch has index 4 at position 0");
  EXPECT_EQ(w.get(last).to_vector(), (std::vector<float>{2, 3, 4, 5})) << "nothing has changed";
}

sr::Sum<int> sum_local(sr::Local<int, 1> x) { return std::accumulate(x.begin(), x.end(), 0); }
sr::Sum<int> sum_sliced(sr::Comm&, sr::Sliced<const int, 1> x) { return std::accumulate(x.begin(), x.end(), 0); }
void add_one(sr::Update<sr::op::sum, int, 1> x) {
  std::copy(x.original().begin(), x.original().end(), x.value().begin());
  x.value()[0] += 1;
}

/// A call on all ranks is refused, and the message names the ranks without a copy. A call on one rank with a copy
/// works.
TEST_P(SharedVariable, IsNoArgumentForARankThatWasGivenNothing) {
  const int last = world_size() - 1;
  const auto local = session().function(sum_local, "sum_local");
  const auto sliced = session().function(sum_sliced, "sum_sliced");
  const auto update = session().function(add_one, "add_one");
  auto x = session().shared<int, 1>("x");
  EXPECT_ERROR(local(x), sr::ErrorKind::usage, "argument 0 (Local) of 'sum_local': variable 'x' has no shape yet");
  x.set(last, std::vector{1, 2, 3});
  EXPECT_EQ(local.on_rank(last)(x), 6);
  if (last == 0) return;
  const std::string ranks = last == 1 ? "rank 0 " : last == 2 ? "ranks 0, 1 " : "ranks 0, 1, 2 ";
  EXPECT_ERROR(local(x), sr::ErrorKind::usage,
               "argument 0 (Local) of 'sum_local': variable 'x' has no values on " + ranks);
  EXPECT_ERROR(local(x), sr::ErrorKind::usage, "use set there, or broadcast or scatter, first");
  EXPECT_ERROR(static_cast<void>(local.async(x)), sr::ErrorKind::usage, "'x' has no values on " + ranks);
  EXPECT_ERROR(local.on_rank(0)(x), sr::ErrorKind::usage, "'x' has no values on rank 0 ");
  EXPECT_ERROR(sliced(x), sr::ErrorKind::usage, "'x' has no values on " + ranks);
  EXPECT_ERROR(update(x), sr::ErrorKind::usage, "'x' has no values on " + ranks);
  EXPECT_ERROR(local(session().find_shared<int, 1>("x")), sr::ErrorKind::usage, "'x' has no values on " + ranks);
  EXPECT_ERROR(x.broadcast(0), sr::ErrorKind::usage, "broadcast from rank 0: 'x' has no values on rank 0 ");
  EXPECT_EQ(local.on_rank(last)(x), 6) << "nothing has moved";
  for (int rank = 0; rank < last; ++rank) x.set(rank, std::vector{1});
  EXPECT_EQ(local(x), 6 + last);
  update(x);
  EXPECT_EQ(local(x), 6 + last + world_size());
}

TEST_P(SharedVariable, IsAnArgumentOnceEveryRankWasGivenSomethingBeItNoRows) {
  const int last = world_size() - 1;
  const auto local = session().function(sum_local, "sum_local");
  const auto sliced = session().function(sum_sliced, "sum_sliced");
  const auto with = [&](auto&& give) {
    auto x = session().shared<int, 1>();
    give(x);
    return x;
  };
  const std::vector<int> values{1, 2, 3};
  EXPECT_EQ(local(with([](auto& x) { x.scatter(std::vector{7}); })), 7) << "the other ranks have no rows";
  EXPECT_EQ(sliced(with([](auto& x) { x.scatter(std::vector{7}); })), 7);
  EXPECT_EQ(local(with([](auto& x) { x.broadcast(std::vector<int>()); })), 0);
  EXPECT_EQ(local(with([&](auto& x) {
              x.set(last, values);
              x.broadcast(last);
            })),
            6 * world_size());
  EXPECT_EQ(local(with([&](auto& x) {
              x.set(last, values);
              x.all_gather();
            })),
            6 * world_size());
  EXPECT_EQ(local(with([&](auto& x) {
              x.broadcast(std::vector{1});
              x.reduce_scatter(sr::Reduction::sum);
            })),
            world_size());
  EXPECT_EQ(local(with([&](auto& x) { session().broadcast({{x, values}}); })), 6 * world_size());
  EXPECT_EQ(local(with([&](auto& x) { session().scatter({{x, values}}, {.batch = sr::Slice{0, 1}}); })), 1);
}

TEST_P(SharedVariable, ThatWasNeverAssignedStaysSoAfterACollective) {
  auto x = session().shared<int, 2>("x");
  x.all_gather();
  x.all_reduce(sr::Reduction::sum);
  EXPECT_ERROR(session().function([](sr::Local<int, 2>) {})(x), sr::ErrorKind::usage, "'x' has no shape yet");
}

// ---- Sliced arguments --------------------------------------------------------------------------------------------

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
  x.broadcast(std::vector<int>());
  EXPECT_ERROR(session().function(seen)(x), sr::ErrorKind::usage, "at least one row, got 0");
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
