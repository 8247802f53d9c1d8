// Calls in flight.

#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

class Async : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Async, 1, 3);

sr::Sum<std::int64_t> same(std::int64_t value) { return value; }

TEST_P(Async, IsReadyOnceItsDeadlineHasPassed) {
  const auto endless = session().function([] { std::this_thread::sleep_for(std::chrono::seconds(30)); }, "endless");
  auto future = endless.async({.timeout = std::chrono::milliseconds(100)});
  while (!future.is_ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_ERROR(future.get(), sr::ErrorKind::timeout, "'endless' did not finish within 100 ms");
  end_session();
}

TEST_P(Async, IsNotReadyAfterItWasFetched) {
  auto future = session().function(same).async(1);
  future.get();
  EXPECT_FALSE(future.is_ready());
}

TEST_P(Async, DeadlinesTooLongToCountAreEndless) {
  const auto f = session().function([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  f({.timeout = std::chrono::milliseconds::max()});
}

TEST_P(Async, ACallThatSharesAFateDoesNotHideALaterFailure) {
  // Rank 0 fails at once, and the other ranks are slow. So they reach the next two calls only after the master has
  // heard of the failure.
  auto total = session().shared<int, 1>("total");
  total.broadcast(std::vector<int>{0});
  const auto f = session().function([](sr::CpuWorker& worker, sr::Local<int, 1>, int number) {
    if (worker.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (number < 0) throw std::runtime_error("number " + std::to_string(number));
  });
  const auto update = session().function([](sr::Update<sr::op::sum, int, 1> total) { total.value()[0] = 1; });
  for (int round = 0; round < 5; ++round) {
    auto first = f.async(total, -1);
    static_cast<void>(f.async(total, -2));
    static_cast<void>(f.async(total, -3));
    EXPECT_ERROR(first.get(), sr::ErrorKind::function, "number -1");
    auto fourth = f.async(total, -4);
    auto last = update.async(total);
    EXPECT_ERROR(fourth.get(), sr::ErrorKind::function, "number -4");
    EXPECT_ERROR(last.get(), sr::ErrorKind::function, "number -4");
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(total.get(rank)[0], 0);
    try {
      session().wait();
    } catch (const sr::Error&) {
      // wait() reports the errors of the futures that were dropped
    }
  }
}

TEST_P(Async, AFailedReaderOfAVariableLeavesLaterWritersAlone) {
  auto total = session().shared<int, 1>("total");
  total.broadcast(std::vector<int>{0});
  const auto read = session().function([](sr::Local<const int, 1>) -> sr::Sum<int> {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw std::runtime_error("cannot read");
  });
  const auto write = session().function([](sr::Local<int, 1> total) { total[0] = 7; });
  auto reading = read.async(total);
  auto writing = write.async(total);
  writing.get();
  EXPECT_ERROR(reading.get(), sr::ErrorKind::function, "cannot read");
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(total.get(rank)[0], 7);
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

}  // namespace
