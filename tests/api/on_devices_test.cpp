// Calls on a device, and on a set of devices.

#include <chrono>
#include <stdexcept>

#include "tests/support/on_workers.hpp"

namespace {

class OnDevices : public OnWorkers {
 protected:
  sr::Device last() { return device(world_size() - 1); }
  sr::Device device(int rank) { return session().device(rank); }
};
INSTANTIATE_ON_WORKERS(OnDevices, 1, 4);

struct Share {
  sr::Gather<std::int64_t, 2> seen;  // rank in the session, rank in the set, first row, rows
  sr::Avg<double> mean;
};

Share share(sr::CpuWorker& worker, sr::Comm& comm, sr::Scattered<const double, 1> x) {
  Share own{.seen = {worker, {1, 4}}, .mean = 0.0};
  own.seen(0, 0) = worker.rank();
  own.seen(0, 1) = comm.rank();
  own.seen(0, 2) = x.first_row();
  own.seen(0, 3) = x.rows();
  double sum = 0;
  for (const double value : x) sum += value;
  own.mean = x.rows() == 0 ? 0 : sum / static_cast<double>(x.rows());
  if (comm.all_reduce(1, sr::Reduction::sum) != comm.world_size()) throw std::runtime_error("not among the set only");
  return own;
}

TEST_P(OnDevices, SplitTheRowsOverTheSetInTheOrderOfItsRanks) {
  const auto x = session().data(counting<double>(10));
  const auto f = session().function(share);
  const Share alone = f.on(last())(x);
  ASSERT_EQ(alone.seen.rows(), 1);
  EXPECT_EQ(alone.seen(0, 0), world_size() - 1);
  EXPECT_EQ(alone.seen(0, 1), 0);
  EXPECT_EQ(alone.seen(0, 3), 10);
  EXPECT_DOUBLE_EQ(alone.mean, 4.5);

  if (world_size() < 4) return;
  const Share pair = f.on({device(3), device(1)})(x);
  ASSERT_EQ(pair.seen.rows(), 2);
  EXPECT_EQ(pair.seen(0, 0), 1);
  EXPECT_EQ(pair.seen(0, 1), 0);
  EXPECT_EQ(pair.seen(0, 2), 0);
  EXPECT_EQ(pair.seen(1, 0), 3);
  EXPECT_EQ(pair.seen(1, 1), 1);
  EXPECT_EQ(pair.seen(1, 2), 5);
  EXPECT_DOUBLE_EQ(pair.mean, 4.5);
  const Share three = f.on({device(0), device(2), device(3)})(x);
  EXPECT_EQ(three.seen.rows(), 3);
  EXPECT_DOUBLE_EQ(three.mean, 4.5) << "shares of 4, 3 and 3 rows";
}

TEST_P(OnDevices, OverlappingSetsRunInTheOrderOfTheirCalls) {
  if (world_size() < 4) GTEST_SKIP() << "the sets need four ranks";
  auto total = session().shared("total", std::vector<int>{0});
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm, sr::Local<int, 1> own) -> sr::Sum<int> {
    own[0] = 10 * own[0] + comm.all_reduce(worker.rank(), sr::Reduction::sum);
    return own[0];
  });
  std::vector<sr::Future<sr::Sum<int>>> futures;
  for (int round = 0; round < 100; ++round) {
    for (int rank = 0; rank < 4; ++rank) total.set(rank, std::vector<int>{0});
    auto first = f.on({device(0), device(1)}).async(total);
    auto second = f.on({device(1), device(2)}).async(total);
    auto third = f.on({device(2), device(3), device(0)}).async(total);
    EXPECT_EQ(third.get().value(), 15 + 35 + 5);
    EXPECT_EQ(first.get().value(), 2);
    EXPECT_EQ(second.get().value(), 13 + 3);
  }
}

TEST_P(OnDevices, RefuseAnEmptySetARepeatedNameAndAnUnknownRank) {
  const auto f = session().function(share);
  const auto x = session().data(counting<double>(10));
  const sr::Device by_id = session().device(last().id());
  EXPECT_EQ(f.on({last(), by_id})(x).seen.rows(), 1) << "a rank and the name of the hardware are one device";
  EXPECT_ERROR(static_cast<void>(f.on({by_id, last(), by_id})), sr::ErrorKind::usage,
               "got '" + last().id() + "' twice");
  EXPECT_ERROR(static_cast<void>(f.on(std::span<const sr::Device>())), sr::ErrorKind::usage,
               "on() requires one device or more, got an empty set");
  EXPECT_ERROR(static_cast<void>(f.on({last(), last()})), sr::ErrorKind::usage,
               "on() requires each device once, got '" + std::to_string(last().rank()) + "' twice");
  const sr::Device elsewhere(world_size(), "of another session", "cpu9", "cpu9");
  EXPECT_ERROR(f.on(elsewhere)(x), sr::ErrorKind::usage, "requires a rank from 0 to");
  EXPECT_ERROR(session().synchronize(elsewhere), sr::ErrorKind::usage, "synchronize requires a device of this session");
  EXPECT_EQ(f(x).mean, 4.5) << "the session stays usable";
}

/// A rank waits for its peers of the last set before it writes for the next one. If nobody woke it, each such wait would
/// last up to 100 ms.
TEST_P(OnDevices, AlternatingSetsDoNotWaitForALap) {
  if (world_size() < 4) GTEST_SKIP() << "the sets need three ranks";
  using Clock = std::chrono::steady_clock;
  const auto f = session().function(
      [](sr::Comm& comm) -> sr::Sum<int> { return comm.all_reduce(comm.rank() + 1, sr::Reduction::sum); });
  const sr::Device first = device(0);
  const auto left = f.on({first, device(1)});
  const auto right = f.on({first, device(2)});
  constexpr int kRounds = 2000;
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    auto one = left.async();
    auto other = right.async();
    EXPECT_EQ(other.get(), 6);
    EXPECT_EQ(one.get(), 6);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20)) << "a lap in every tenth round";
}

}  // namespace
