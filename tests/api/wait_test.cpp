// Waiting for one of several calls, for all of them, and for those of a device.

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/gate.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using std::chrono::milliseconds;
using syncrun::test::Gate;
using syncrun::test::pass;

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

TEST_P(Waiting, ForAnyGivesTheFirstThatIsReady) {
  if (world_size() < 2) GTEST_SKIP() << "one rank runs its calls in their order";
  Gate gate;
  std::vector<sr::Future<sr::Sum<int>>> futures;
  futures.push_back(session().function(pass_gate).on_rank(0).async(gate.key()));
  futures.push_back(session().function(sleep_for).on_rank(1).async(100));
  EXPECT_EQ(session().wait_any(futures), 1U);
  EXPECT_EQ(session().wait_any(futures), 1U) << "until its result is fetched";
  EXPECT_EQ(futures[1].get(), 100);
  EXPECT_FALSE(futures[0].is_ready());
  gate.open();
  EXPECT_EQ(session().wait_any(futures), 0U);
  EXPECT_EQ(futures[0].get(), 1);
}

TEST_P(Waiting, ForAnyCountsAFailedCallAsReady) {
  const auto f = session().function(sleep_for);
  std::vector<sr::Future<sr::Sum<int>>> futures;
  futures.push_back(f.async(-1));
  EXPECT_EQ(session().wait_any(futures), 0U);
  EXPECT_ERROR(futures[0].get(), sr::ErrorKind::function, "no such time");
  EXPECT_ERROR(static_cast<void>(session().wait_any(futures)), sr::ErrorKind::usage,
               "wait_any requires a future whose result was not fetched yet, got 1 that were fetched");
  futures.clear();
  EXPECT_ERROR(static_cast<void>(session().wait_any(futures)), sr::ErrorKind::usage, "got 0 futures");
}

TEST_P(Waiting, ForAnyGivesTheFirstOfSeveralThatAreReady) {
  const auto f = session().function(sleep_for);
  std::vector<sr::Future<sr::Sum<int>>> futures;
  for (int call = 0; call < 3; ++call) futures.push_back(f.async(0));
  while (!futures[2].is_ready()) std::this_thread::yield();
  EXPECT_EQ(session().wait_any(futures), 0U) << "each rank has finished all of them";
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

TEST_P(Waiting, ForADeviceDoesNotWaitForOthers) {
  if (world_size() < 2) GTEST_SKIP() << "there is no other rank";
  Gate gate;
  auto slow = session().function(pass_gate).on_rank(0).async(gate.key());
  auto quick = session().function(sleep_for).on_rank(1).async(10);
  session().synchronize(session().device(1));
  EXPECT_TRUE(quick.is_ready());
  EXPECT_FALSE(slow.is_ready());
  gate.open();
}

TEST_P(Waiting, ManyCallsOnOneRankDoNotWaitForABusyOne) {
  if (world_size() < 2) GTEST_SKIP() << "there is no other rank";
  Gate gate;
  auto slow = session().function(pass_gate).on_rank(0).async(gate.key());
  const auto f = session().function(sleep_for);
  std::vector<sr::Future<sr::Sum<int>>> quick;
  for (int call = 0; call < 100; ++call) quick.push_back(f.on_rank(1).async(0));
  for (auto& future : quick) EXPECT_EQ(future.get(), 0);
  for (int call = 0; call < 100; ++call) EXPECT_EQ(f.on_rank(1)(0), 0);
  EXPECT_FALSE(slow.is_ready());
  gate.open();
}

}  // namespace
