// Shared variables, from the master.

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

TEST_P(SharedVariable, RefusesWhatMakesNoSense) {
  auto w = session().shared<float, 1>("weights");
  w.broadcast(std::vector<float>(3));
  EXPECT_ERROR(static_cast<void>(w.get(-1)), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(static_cast<void>(w.get(world_size())), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(w.broadcast(world_size()), sr::ErrorKind::usage, "rank");
  EXPECT_ERROR(w.broadcast(std::vector<float>(3), {4}), sr::ErrorKind::usage, "wants 4 values, got 3");
  EXPECT_ERROR(w.all_reduce(sr::Reduction::gather), sr::ErrorKind::usage, "gather");
  if (world_size() > 1) {
    w.set(0, std::vector<float>(5), {5});
    EXPECT_ERROR(w.all_reduce(sr::Reduction::sum), sr::ErrorKind::usage, "all_reduce of 'weights' wants equal shapes");
  }
  auto flags = session().shared<std::int32_t, 1>("flags");
  flags.broadcast(std::vector<std::int32_t>(3));
  EXPECT_ERROR(flags.all_reduce(sr::Reduction::avg), sr::ErrorKind::usage, "int32 has no avg");
}

}  // namespace
