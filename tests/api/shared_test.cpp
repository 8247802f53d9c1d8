// Shared variables, as the master uses them.

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

}  // namespace
