// Shared variables, as the master uses them.

#include "tests/support/on_workers.hpp"

namespace {

class SharedVariable : public OnWorkers {};
INSTANTIATE_ON_WORKERS(SharedVariable, 1, 2, 3, 4);

TEST_P(SharedVariable, BroadcastGivesEveryRankTheSame) {
  auto w = session().shared<float, 2>("w");
  w.broadcast(counting<float>(6), {2, 3});
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(w.get(rank).to_vector(), counting<float>(6));
    EXPECT_EQ(w.shape(rank), (sr::Shape<2>{2, 3}));
  }
}

TEST_P(SharedVariable, ScatterSplitsRowsAndGatherJoinsThem) {
  auto w = session().shared<std::int32_t, 1>("w");
  w.scatter(counting<std::int32_t>(10));
  std::int64_t rows = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(w.get(rank)[0], rows);
    rows += w.shape(rank).rows();
  }
  EXPECT_EQ(rows, 10);
  EXPECT_EQ(w.gather().to_vector(), counting<std::int32_t>(10));
}

TEST_P(SharedVariable, ScattersFromData) {
  const auto x = session().data(counting<double>(14), sr::Shape{7, 2});
  auto w = session().shared<double, 2>("w");
  w.scatter(x);
  EXPECT_EQ(w.gather().to_vector(), counting<double>(14));
}

TEST_P(SharedVariable, SetAndGetByRankWithShapesOfTheirOwn) {
  auto w = session().shared<float, 1>("w");
  for (int rank = 0; rank < world_size(); ++rank) {
    w.set(rank, std::vector<float>(static_cast<std::size_t>(rank), static_cast<float>(rank)), {rank});
  }
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(w.get(rank).to_vector(), std::vector<float>(static_cast<std::size_t>(rank), static_cast<float>(rank)));
  }
  EXPECT_EQ(w.gather().size(), world_size() * (world_size() - 1) / 2);
}

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

TEST_P(SharedVariable, BroadcastFromARankCopiesValuesAndShape) {
  auto w = session().shared<float, 1>("w");
  const int root = world_size() - 1;
  w.set(root, counting<float>(700'000), {700'000});
  w.broadcast(root);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(w.get(rank).to_vector(), counting<float>(700'000));
}

TEST_P(SharedVariable, AllReduceGivesEveryRankTheResult) {
  const int n = world_size();
  const struct {
    sr::Reduction reduction;
    double expected;
  } cases[] = {{sr::Reduction::sum, n * (n + 1) / 2.0},
               {sr::Reduction::avg, (n + 1) / 2.0},
               {sr::Reduction::min, 1},
               {sr::Reduction::max, static_cast<double>(n)},
               {sr::Reduction::prod, n == 4   ? 24.0
                                     : n == 3 ? 6.0
                                              : n}};
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{5000}, std::int64_t{300'000}}) {
    for (const auto& [reduction, expected] : cases) {
      auto w = session().shared<double, 1>("w");
      for (int rank = 0; rank < n; ++rank) {
        w.set(rank, std::vector<double>(static_cast<std::size_t>(size), rank + 1.0), {size});
      }
      w.all_reduce(reduction);
      for (int rank = 0; rank < n; ++rank) {
        const auto copy = w.get(rank);
        EXPECT_DOUBLE_EQ(copy[0], expected);
        EXPECT_DOUBLE_EQ(copy[size - 1], expected);
      }
    }
  }
}

TEST_P(SharedVariable, KeepsValuesBetweenCalls) {
  auto w = session().shared<double, 1>("w");
  w.broadcast(std::vector<double>{1});
  const auto twice = session().function([](sr::Local<double, 1> own) { own[0] *= 2; });
  for (int i = 0; i < 10; ++i) twice(w);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(w.get(rank)[0], 1024);
}

TEST_P(SharedVariable, ChangesItsShape) {
  auto w = session().shared<float, 1>("w");
  for (const std::int64_t size : {10, 100'000, 3, 0, 500'000}) {
    w.broadcast(std::vector<float>(static_cast<std::size_t>(size), 1.0F));
    EXPECT_EQ(w.shape(world_size() - 1).rows(), size);
    EXPECT_EQ(w.get(0).size(), size);
  }
}

TEST_P(SharedVariable, GivesItsMemoryBackWithItsLastHandle) {
  for (int i = 0; i < 100; ++i) {
    auto w = session().shared<float, 1>();
    w.broadcast(std::vector<float>(100'000, 1.0F));
  }
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
  EXPECT_ERROR(session().function(+[](sr::Local<int, 2>) {})(x), sr::ErrorKind::usage, "'x' has no shape yet");
}

TEST_P(SharedVariable, RefusesWhatMakesNoSense) {
  auto w = session().shared<float, 1>("weights");
  w.broadcast(std::vector<float>(3));
  EXPECT_ERROR(static_cast<void>(w.get(-1)), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(static_cast<void>(w.get(world_size())), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(w.broadcast(world_size()), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(w.broadcast(std::vector<float>(3), {4}), sr::ErrorKind::usage, "requires 4 values, got 3");
  EXPECT_ERROR(w.all_reduce(sr::Reduction::gather), sr::ErrorKind::usage, "gather");
  if (world_size() > 1) {
    w.set(0, std::vector<float>(5), {5});
    EXPECT_ERROR(w.all_reduce(sr::Reduction::sum), sr::ErrorKind::usage,
                 "all_reduce of 'weights' requires equal shapes");
  }
  auto flags = session().shared<std::int32_t, 1>("flags");
  flags.broadcast(std::vector<std::int32_t>(3));
  EXPECT_ERROR(flags.all_reduce(sr::Reduction::avg), sr::ErrorKind::usage, "int32 has no avg");
}

}  // namespace
