// Calls in flight.

#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

class Async : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Async, 1, 2, 4);

sr::Sum<std::int64_t> same(std::int64_t value) { return value; }

TEST_P(Async, KeepsOrderOverMoreCallsThanTheRingHolds) {
  const auto f = session().function(same);
  std::vector<sr::Future<sr::Sum<std::int64_t>>> futures;
  for (std::int64_t i = 0; i < 200; ++i) futures.push_back(f.async(i));
  for (std::int64_t i = 199; i >= 0; --i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get(), i * world_size());
}

TEST_P(Async, ReturnsBeforeTheCallIsDone) {
  const auto slow = session().function([] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  auto future = slow.async();
  EXPECT_FALSE(future.is_ready());
  future.get();
}

TEST_P(Async, IsReadyWithoutBlocking) {
  auto future = session().function(same).async(1);
  while (!future.is_ready()) std::this_thread::yield();
  EXPECT_EQ(future.get(), world_size());
}

TEST_P(Async, MixesWithBlockingCalls) {
  const auto f = session().function(same);
  auto first = f.async(1);
  EXPECT_EQ(f(2), 2 * world_size());
  EXPECT_EQ(first.get(), world_size());
}

TEST_P(Async, WaitsForDroppedFutures) {
  const auto slow = session().function([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  for (int i = 0; i < 3; ++i) static_cast<void>(slow.async());
  session().wait();
}

TEST_P(Async, FailsLaterCallsWithTheCauseOfTheFirst) {
  const auto f = session().function([](sr::CpuWorker& worker, int number) -> sr::Sum<int> {
    if (number == 1 && worker.rank() == worker.world_size() - 1) throw std::runtime_error("number one");
    return number;
  });
  auto first = f.async(0);
  auto second = f.async(1);
  auto third = f.async(2);
  EXPECT_EQ(first.get(), 0);
  EXPECT_ERROR(second.get(), sr::ErrorKind::function, "number one");
  EXPECT_ERROR(third.get(), sr::ErrorKind::function, "number one");
  EXPECT_EQ(f(5), 5 * world_size());
}

TEST_P(Async, ReportsADroppedFuturesFailureAtTheNextWait) {
  const auto bad = session().function([]() -> sr::Sum<int> { throw std::runtime_error("dropped"); });
  static_cast<void>(bad.async());
  EXPECT_ERROR(session().wait(), sr::ErrorKind::function, "dropped");
  session().wait();
}

TEST_P(Async, KeepsLargeResultsUntilTheyAreFetched) {
  const auto f = session().function([](sr::CpuWorker& worker, int number) {
    sr::Sum<std::int32_t, 1> out(worker, {50'000});
    std::fill(out.begin(), out.end(), number);
    return out;
  });
  std::vector<sr::Future<sr::Sum<std::int32_t, 1>>> futures;
  for (int i = 0; i < 40; ++i) futures.push_back(f.async(i));
  for (int i = 0; i < 40; ++i) {
    const auto result = futures[static_cast<std::size_t>(i)].get();
    EXPECT_EQ(result[0], i * world_size());
    EXPECT_EQ(result[49'999], i * world_size());
  }
}

TEST_P(Async, RefusesASecondGet) {
  auto future = session().function(same).async(1);
  future.get();
  EXPECT_ERROR(future.get(), sr::ErrorKind::usage, "twice");
}

}  // namespace
