// Calls in flight, and waits for one of them, for all of them, and for those of a device.

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/gate.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using std::chrono::milliseconds;
using syncrun::test::Gate;
using syncrun::test::pass;

class Async : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Async, 1, 3);

TEST_P(Async, DeadlinesTooLongToCountAreEndless) {
  const auto f = session().function([] { std::this_thread::sleep_for(milliseconds(20)); });
  f({.timeout = milliseconds::max()});
}

TEST_P(Async, ACallThatSharesAFateDoesNotHideALaterFailure) {
  // Rank 0 fails at once, and the other ranks are slow. So they reach the next two calls only after the master has
  // heard of the failure.
  auto total = session().shared<int, 1>("total");
  total.broadcast(std::vector<int>{0});
  const auto f = session().function([](sr::CpuWorker& worker, sr::Local<int, 1>, int number) {
    if (worker.rank() != 0) std::this_thread::sleep_for(milliseconds(5));
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
    std::this_thread::sleep_for(milliseconds(5));
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
    EXPECT_FALSE(futures[static_cast<std::size_t>(i)].is_ready()) << "it was fetched";
  }
}

// ---- waits ------------------------------------------------------------------------------------------------------

class Waiting : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Waiting, 1, 3);

sr::Sum<int> sleep_for(int ms) {
  if (ms < 0) throw std::runtime_error("no such time");
  std::this_thread::sleep_for(milliseconds(ms));
  return ms;
}

sr::Sum<int> pass_gate(Gate::Key key) {
  pass(key);
  return 1;
}

TEST_P(Waiting, ForAnyGivesTheFirstThatIsReadyAndForADeviceDoesNotWaitForOthers) {
  if (world_size() < 2) GTEST_SKIP() << "one rank runs its calls in their order";
  Gate gate;
  std::vector<sr::Future<sr::Sum<int>>> futures;
  futures.push_back(session().function(pass_gate).on_rank(0).async(gate.key()));
  futures.push_back(session().function(sleep_for).on_rank(1).async(100));
  session().synchronize(session().device(1));
  EXPECT_TRUE(futures[1].is_ready());
  EXPECT_EQ(session().wait_any(futures), 1U);
  EXPECT_EQ(session().wait_any(futures), 1U) << "until its result is fetched";
  EXPECT_EQ(futures[1].get(), 100);
  EXPECT_FALSE(futures[0].is_ready());
  gate.open();
  EXPECT_EQ(session().wait_any(futures), 0U);
  EXPECT_EQ(futures[0].get(), 1);
}

TEST_P(Waiting, ForAnyCountsAFailedCallAsReadyAndGivesTheFirstOfSeveral) {
  const auto f = session().function(sleep_for);
  std::vector<sr::Future<sr::Sum<int>>> futures;
  EXPECT_ERROR(static_cast<void>(session().wait_any(futures)), sr::ErrorKind::usage, "got 0 futures");
  futures.push_back(f.async(-1));
  EXPECT_EQ(session().wait_any(futures), 0U);
  EXPECT_ERROR(futures[0].get(), sr::ErrorKind::function, "no such time");
  EXPECT_ERROR(static_cast<void>(session().wait_any(futures)), sr::ErrorKind::usage,
               "wait_any requires a future whose result was not fetched yet, got 1 that were fetched");
  for (int call = 0; call < 3; ++call) futures.push_back(f.async(0));
  while (!futures[3].is_ready()) std::this_thread::yield();
  EXPECT_EQ(session().wait_any(futures), 1U) << "each rank has finished all of them";
}

TEST_P(Waiting, ForAllLeavesErrorsToTheFutures) {
  const auto f = session().function(sleep_for);
  std::vector<sr::Future<sr::Sum<int>>> futures;
  for (const int ms : {1, -1, 2}) futures.push_back(f.async(ms));
  session().wait_all(futures);
  for (const auto& future : futures) EXPECT_TRUE(future.is_ready());
  EXPECT_EQ(futures[2].get(), 2 * world_size());
  EXPECT_ERROR(futures[1].get(), sr::ErrorKind::function, "no such time");
  EXPECT_EQ(futures[0].get(), world_size());
}

}  // namespace
