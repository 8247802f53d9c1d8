// A worker dies while its peers wait for it, or while it waits for them: in collectives and in the vote.

#include <csignal>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

/// The collective in which the peers wait.
enum class Meeting : std::uint8_t { barrier, large_all_reduce };

void meet(Comm& comm, Meeting meeting) {
  if (meeting == Meeting::barrier) return comm.barrier();
  std::vector<double> values(1'000'000, comm.rank());
  comm.all_reduce(std::span<double>(values), Reduction::sum);
}

void meet_without(CpuWorker& worker, Comm& comm, BoardView board, int missing, Meeting meeting) {
  meet(comm, meeting);
  field(board, worker.rank()).store(worker.rank() == missing ? 2 : 1);
  if (worker.rank() == missing) {
    // The peers are on their way into the collective. The rank dies when the master says that they sleep there.
    while (field(board, Board::kFields - 2).load() == 0) ::sched_yield();
    die(Death::kill, board);
  }
  meet(comm, meeting);
}

class LostPeer : public testing::TestWithParam<Meeting> {};

TEST_P(LostPeer, ReleasesWhoWaitsInACollective) {
  constexpr int kWorldSize = 3;
  constexpr int kMissing = kWorldSize - 1;
  Session session(workers(kWorldSize));
  const auto pids = session.worker_pids();
  Board board(session);
  const auto f = session.function(meet_without, "meet_without");
  auto future = f.async(board.data(), kMissing, GetParam());
  for (int rank = 0; rank < kWorldSize; ++rank) ASSERT_TRUE(board.reaches(rank, 1));
  for (int rank = 0; rank < kMissing; ++rank) ASSERT_TRUE(falls_asleep(pids[static_cast<std::size_t>(rank)]));
  board.set(Board::kFields - 2, 1);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {kMissing, "function", cause_of(Death::kill), "meet_without"}, pids, board.time_of_death());
  for (const auto& released : error.failure().peers_released) {
    if (released != Clock::time_point{}) {
      EXPECT_LT(released - board.time_of_death(), kErrorLimit);
    }
  }
  expect_over(session, error);
}

INSTANTIATE_TEST_SUITE_P(In, LostPeer, testing::Values(Meeting::barrier, Meeting::large_all_reduce),
                         [](const auto& test) { return test.param == Meeting::barrier ? "Barrier" : "AllReduce"; });

class LossWhileWaiting : public testing::Test {
 protected:
  static constexpr int kLast = 2;
  Session session{workers(kLast + 1)};
};

Sum<int> update_slowly(CpuWorker& worker, BoardView board, Update<op::sum, float, 1> variable, int slow) {
  field(board, worker.rank()).store(1);
  while (worker.rank() == slow && field(board, Board::kFields - 2).load() == 0) ::sched_yield();
  if (worker.rank() == slow) die(Death::kill, board);
  variable.value()[0] = 1;
  return 1;
}

TEST_F(LossWhileWaiting, InTheVoteIsNamedSo) {
  const auto pids = session.worker_pids();
  const Board board(session);
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  auto future = session.function(update_slowly, "update_slowly").async(board.data(), variable, 0);
  ASSERT_TRUE(board.reaches(kLast, 1));
  ASSERT_TRUE(falls_asleep(pids.back()));
  const auto death = Clock::now();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {kLast, "vote", cause_of(Death::kill), "update_slowly"}, pids, death);
}

TEST_F(LossWhileWaiting, ReleasesWhoWaitsInTheVote) {
  const auto pids = session.worker_pids();
  Board board(session);
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  auto future = session.function(update_slowly, "update_slowly").async(board.data(), variable, kLast);
  ASSERT_TRUE(board.reaches(0, 1));
  ASSERT_TRUE(falls_asleep(pids.front()));
  board.set(Board::kFields - 2, 1);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {kLast, "function", cause_of(Death::kill), "update_slowly"}, pids, board.time_of_death());
  expect_over(session, error);
}

TEST_F(LossWhileWaiting, OfAVariableIsNamedWithIt) {
  const auto pids = session.worker_pids();
  auto variable = session.shared<float, 1>("weights");
  variable.broadcast(std::vector<float>(1000, 1));
  stop(pids.front());
  ASSERT_EQ(::kill(pids.front(), SIGKILL), 0);
  const auto called = Clock::now();
  const Error error = error_of([&] { variable.all_reduce(Reduction::sum); });
  expect_loss(error, {0, "idle", cause_of(Death::kill), ""}, pids, called);
  expect_over(session, error);
  expect_usage([&] { static_cast<void>(variable.get(0)); }, {"the session is over"});
}

}  // namespace
}  // namespace syncrun::test
