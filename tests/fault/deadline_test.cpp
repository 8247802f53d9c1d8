// Errors about hangs: endless loops, ranks that do not come to a collective, stopped workers.

#include <csignal>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

constexpr auto kDeadline = kSlowdown * 2000ms;

[[noreturn]] void loop_endlessly() {
  for (std::atomic<int> i = 0;; ++i) {
  }
}

/// The other ranks wait in the vote.
void hang(CpuWorker& worker, Update<op::sum, float, 1> variable, int rank) {
  variable.value()[0] = 1;
  if (worker.rank() == rank) loop_endlessly();
}

void hang_alone(CpuWorker& worker, int rank) {
  if (worker.rank() == rank) loop_endlessly();
}

class Deadline : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
};
INSTANTIATE_WITH_WORKERS(Deadline);

TEST_P(Deadline, BlamesTheLoopAndNotWhoWaitsForItInTheVote) {
  for (const int rank : {0, last()}) {
    Session session(workers(GetParam()));
    const auto pids = session.worker_pids();
    auto variable = session.shared<float, 1>("v");
    variable.broadcast(std::vector<float>{1});
    const auto f = session.function(hang, "hang");
    const auto begin = Clock::now();
    const Error error = expect_error([&] { f(variable, rank, {.timeout = kDeadline}); }, ErrorKind::timeout);
    const auto took = Clock::now() - begin;
    for (int other = 0; other < GetParam(); ++other) {
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(other) + " (cpu" + std::to_string(other) + ", pid " +
                                          std::to_string(pids[static_cast<std::size_t>(other)]) + ") is in phase " +
                                          (other == rank ? "function" : "vote")));
    }
    EXPECT_EQ(error.rank(), rank) << error.what();
    EXPECT_EQ(error.failure().pid, pids[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(error.failure().device, "cpu" + std::to_string(rank));
    EXPECT_EQ(error.failure().phase, "function");
    EXPECT_EQ(error.failure().call, "hang");
    EXPECT_THAT(error.what(), HasSubstr("'hang' did not finish within " + std::to_string(kDeadline.count()) + " ms"));
    EXPECT_GE(took, kDeadline);
    EXPECT_LT(took, kDeadline + kErrorLimit);
    for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  }
}

TEST_P(Deadline, FailsAllCallsInFlight) {
  Session session(workers(GetParam()));
  const auto f = session.function(hang_alone, "hang_alone");
  auto before = f.async(-1);
  auto hangs = f.async(last(), {.timeout = kDeadline});
  auto after = f.async(-1);
  before.get();
  const Error error = expect_error([&] { hangs.get(); }, ErrorKind::timeout);
  EXPECT_STREQ(error_of([&] { after.get(); }).what(), error.what());
  expect_over(session, error);
}

TEST_P(Deadline, IsNotReachedByAWorkerThatIsContinuedInTime) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const auto f = session.function([](Comm& comm) { return Sum<int>(comm.all_reduce(1, Reduction::sum)); });
  for (const int pid : pids) {
    stop(pid);
    auto future = f.async();
    EXPECT_FALSE(future.is_ready());
    ASSERT_EQ(::kill(pid, SIGCONT), 0);
    EXPECT_EQ(future.get(), GetParam() * GetParam());
  }
  expect_usable(session);
  session.close();
}

Sum<int> rank_of(CpuWorker& worker) { return Sum<int>(worker.rank()); }

TEST_P(Deadline, CallsOnOtherRanksDoNotNoticeAStoppedWorker) {
  if (GetParam() < 2) GTEST_SKIP() << "there is no other rank";
  Session session(workers(GetParam()));
  const auto f = session.function(rank_of, "rank_of").on_rank(1);
  stop(session.worker_pids().front());
  for (int call = 0; call < 1000; ++call) EXPECT_EQ(f(), 1);
  ASSERT_EQ(::kill(session.worker_pids().front(), SIGCONT), 0);
  expect_usable(session);
}

TEST_P(Deadline, BelowZeroIsRefused) {
  Session session(workers(GetParam()));
  const auto f = session.function(hang_alone, "hang_alone");
  expect_usage([&] { f(-1, {.timeout = -1ms}); }, {"CallOptions::timeout is at least 0, got -1 ms"});
  expect_usable(session);
}

}  // namespace
}  // namespace syncrun::test
