// A worker dies while its peers wait for it, or while it waits for them: in collectives and in the vote.

#include <csignal>
#include <random>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

/// The collective in which the peers wait.
enum class Meeting : std::uint8_t { barrier, all_reduce, large_all_reduce, broadcast, all_gather };

std::string name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::barrier: return "Barrier";
    case Meeting::all_reduce: return "AllReduce";
    case Meeting::large_all_reduce: return "LargeAllReduce";
    case Meeting::broadcast: return "Broadcast";
    case Meeting::all_gather: return "AllGather";
  }
  return "";
}

void meet(Comm& comm, Meeting meeting) {
  std::vector<double> values(meeting == Meeting::large_all_reduce ? 1'000'000 : 10, comm.rank());
  std::vector<double> all(values.size() * static_cast<std::size_t>(comm.world_size()));
  switch (meeting) {
    case Meeting::barrier: return comm.barrier();
    case Meeting::all_reduce:
    case Meeting::large_all_reduce: return comm.all_reduce(std::span<double>(values), Reduction::sum);
    case Meeting::broadcast: return comm.broadcast(std::span<double>(values), 0);
    case Meeting::all_gather: return comm.all_gather(std::span<const double>(values), std::span<double>(all));
  }
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

class LostPeer : public testing::TestWithParam<std::tuple<Meeting, int>> {};

TEST_P(LostPeer, ReleasesWhoWaitsInACollective) {
  const auto [meeting, world_size] = GetParam();
  Session session(workers(world_size));
  const auto pids = session.worker_pids();
  Board board(session);
  const auto f = session.function(meet_without, "meet_without");
  for (const int missing : {world_size - 1}) {
    auto future = f.async(board.data(), missing, meeting);
    for (int rank = 0; rank < world_size; ++rank) {
      ASSERT_TRUE(board.reaches(rank, 1));
      if (rank != missing) {
        ASSERT_TRUE(falls_asleep(pids[static_cast<std::size_t>(rank)]));
      }
    }
    board.set(Board::kFields - 2, 1);
    const Error error = error_of([&] { future.get(); });
    expect_loss(error, {missing, "function", cause_of(Death::kill), "meet_without"}, pids, board.time_of_death());
    for (const auto& released : error.failure().peers_released) {
      if (released != Clock::time_point{}) {
        EXPECT_LT(released - board.time_of_death(), kErrorLimit);
      }
    }
    expect_over(session, error);
  }
}

INSTANTIATE_TEST_SUITE_P(
    In, LostPeer,
    testing::Combine(testing::Values(Meeting::barrier, Meeting::all_reduce, Meeting::large_all_reduce,
                                     Meeting::broadcast, Meeting::all_gather),
                     testing::Values(2, 4)),
    [](const auto& test) { return name_of(std::get<0>(test.param)) + "Of" + std::to_string(std::get<1>(test.param)); });

class LossWhileWaiting : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
};
INSTANTIATE_TEST_SUITE_P(Workers, LossWhileWaiting, testing::Values(2, 4), testing::PrintToStringParamName());

TEST_P(LossWhileWaiting, InACollectiveIsNamedSo) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(
      +[](CpuWorker& worker, Comm& comm, BoardView board) {
        if (worker.rank() != 0) {
          field(board, worker.rank()).store(1);
          comm.barrier();
        }
        for (;;) ::pause();
      },
      "f");
  auto future = f.async(board.data());
  ASSERT_TRUE(board.reaches(last(), 1));
  ASSERT_TRUE(falls_asleep(pids.back()));
  const auto death = Clock::now();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {last(), "collective", cause_of(Death::kill), "f"}, pids, death);
}

Sum<int> update_slowly(CpuWorker& worker, BoardView board, Update<op::sum, float, 1> variable, int slow) {
  field(board, worker.rank()).store(1);
  while (worker.rank() == slow && field(board, Board::kFields - 2).load() == 0) ::sched_yield();
  if (worker.rank() == slow) die(Death::kill, board);
  variable.value()[0] = 1;
  return 1;
}

TEST_P(LossWhileWaiting, InTheVoteIsNamedSo) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const Board board(session);
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  auto future = session.function(update_slowly, "update_slowly").async(board.data(), variable, 0);
  ASSERT_TRUE(board.reaches(last(), 1));
  ASSERT_TRUE(falls_asleep(pids.back()));
  const auto death = Clock::now();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {last(), "vote", cause_of(Death::kill), "update_slowly"}, pids, death);
}

TEST_P(LossWhileWaiting, ReleasesWhoWaitsInTheVote) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  Board board(session);
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  auto future = session.function(update_slowly, "update_slowly").async(board.data(), variable, last());
  ASSERT_TRUE(board.reaches(0, 1));
  ASSERT_TRUE(falls_asleep(pids.front()));
  board.set(Board::kFields - 2, 1);
  const Error error = error_of([&] { future.get(); });
  expect_loss(error, {last(), "function", cause_of(Death::kill), "update_slowly"}, pids, board.time_of_death());
  expect_over(session, error);
}

TEST_P(LossWhileWaiting, OfAVariableIsNamedWithIt) {
  Session session(workers(GetParam()));
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

/// A call with collectives and an update. A thread of the test kills a rank at a random time while such calls run.
Sum<double> work(CpuWorker& worker, Comm& comm, Scattered<const double, 1> rows, Update<op::sum, float, 1> variable) {
  std::vector<double> values(5000, worker.rank());
  comm.all_reduce(std::span<double>(values), Reduction::sum);
  variable.value()[0] = 1;
  comm.barrier();
  return rows.rows() == 0 ? 0 : rows[0];
}

TEST_P(LossWhileWaiting, AtAnyMomentEndsInTime) {
  std::mt19937 random(42);
  for (int round = 0; round < 10; ++round) {
    Session session(workers(GetParam()));
    const auto pids = session.worker_pids();
    auto variable = session.shared<float, 1>("v");
    variable.broadcast(std::vector<float>{1});
    const auto data = session.data(std::vector<double>(100, 1));
    const auto f = session.function(work, "work");
    const auto victim = static_cast<std::size_t>(random() % pids.size());
    std::atomic<std::int64_t> death{0};
    std::thread killer([&, delay = std::chrono::microseconds(random() % 5000)] {
      std::this_thread::sleep_for(delay);
      death.store(now_ns());
      ::kill(pids[victim], SIGKILL);
    });
    const Error error = error_of([&] {
      for (;;) {
        auto first = f.async(data, variable);
        auto second = f.async(data, variable);
        f(data, variable);
        first.get();
        second.get();
      }
    });
    killer.join();
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), static_cast<int>(victim));
    EXPECT_EQ(error.failure().cause, cause_of(Death::kill));
    EXPECT_LT(Clock::now().time_since_epoch().count() - death.load(), Clock::duration(kErrorLimit).count());
  }
}

}  // namespace
}  // namespace syncrun::test
