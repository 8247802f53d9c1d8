// A worker dies: in the body of a function, in the destructor of its object, while it is idle, and while its peers wait for
// it, or it waits for them, in the vote. The matrix has the deaths while peers wait in a collective.

#include <csignal>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

void die_on(CpuWorker& worker, BoardView board, int rank, Death way) {
  if (worker.rank() == rank) die(way, board);
}

/// The matrix has the other ways to die, in each phase.
class LostWorker : public testing::TestWithParam<Death> {};
INSTANTIATE_TEST_SUITE_P(By, LostWorker, testing::Values(Death::abort, Death::exit_4, Death::terminate),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(LostWorker, IsNamedWithRankAndCause) {
  constexpr int kLast = 2;
  Session session(workers(kLast + 1));
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(die_on, "die_on");
  const Error error = error_of([&] { f(board.data(), kLast, GetParam()); });
  expect_loss(error, {kLast, "function", cause_of(GetParam()), "die_on"}, pids, board.time_of_death());
  EXPECT_THAT(error.failure().last_stderr, Contains(kLastWords));
  EXPECT_THAT(error.what(), HasSubstr("[rank 2] " + std::string(kLastWords)));
  expect_over(session, error);
  expect_usage([&] { f(board.data(), 0, Death::kill); }, {"the session is over", error.what()});
}

class LostWorkerOf : public WithWorkers {};
INSTANTIATE_WITH_WORKERS(LostWorkerOf);

TEST_P(LostWorkerOf, WhileIdleIsToldByClose) {
  const auto pids = session.worker_pids();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return !is_alive(pids.back()); }));
  const Error error = expect_error([&] { session.close(); }, ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().cause, cause_of(Death::kill));
  expect_over(session, error);
}

TEST_P(LostWorkerOf, IsTheFirstWhereAllDie) {
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(
      [](CpuWorker& worker, BoardView board) {
        field(board, worker.rank()).store(1);
        if (worker.rank() == worker.world_size() - 1) die(Death::exit_quickly_3, board);
        for (;;) ::pause();
      },
      "f");
  const Error error = error_of([&] { f(board.data()); });
  expect_loss(error, {last(), "function", cause_of(Death::exit_quickly_3), "f"}, pids, board.time_of_death());
}

TEST_P(LostWorkerOf, BringsItsLastLinesOnly) {
  const auto f = session.function([](CpuWorker& worker, int rank) {
    if (worker.rank() != rank) return;
    for (int line = 0; line < 50; ++line) std::fprintf(stderr, "line %d\n", line);
    std::fprintf(stderr, "without an end");
    std::fflush(stderr);
    die(Death::segfault);
  });
  const Error error = error_of([&] { f(last()); });
  const auto& lines = error.failure().last_stderr;
  ASSERT_GE(lines.size(), 2U);
  EXPECT_LE(lines.size(), 20U);
  EXPECT_EQ(lines[lines.size() - 2], "line 49");
  EXPECT_EQ(lines.back(), "without an end");
}

// ---- replicated objects ---------------------------------------------------------------------------------------

class Fragile {
 public:
  Fragile(CpuWorker& worker, int rank) : dies_(worker.rank() == rank) {}
  Fragile(const Fragile&) = delete;
  Fragile& operator=(const Fragile&) = delete;
  ~Fragile() {
    if (dies_) die(Death::segfault);
  }
  Sum<int> one() { return 1; }

 private:
  bool dies_;
};

TEST_P(LostWorkerOf, InADestructorIsNamedSo) {
  const auto pids = session.worker_pids();
  {
    const auto object = session.replicate<Fragile>(last());
    EXPECT_EQ(session.function(&Fragile::one, object)(), GetParam());
  }
  const auto called = Clock::now();
  const Error error = error_of([&] {
    session.shared<float, 1>();  // begins the destruction
    session.wait();
  });
  expect_loss(error, {last(), "function", cause_of(Death::segfault), "the destruction of a replicated object"}, pids,
              called);
  expect_over(session, error);
}

// ---- while ranks wait for each other in the vote --------------------------------------------------------------

class LossWhileWaiting : public testing::Test {
 protected:
  static constexpr int kLast = 2;
  Session session{workers(kLast + 1)};
  std::vector<int> pids = session.worker_pids();
  Board board{session};
};

Sum<int> update_slowly(CpuWorker& worker, BoardView board, Update<op::sum, float, 1> variable, int slow) {
  field(board, worker.rank()).store(1);
  while (worker.rank() == slow && field(board, Board::kFields - 2).load() == 0) ::sched_yield();
  if (worker.rank() == slow) die(Death::kill, board);
  variable.value()[0] = 1;
  return 1;
}

TEST_F(LossWhileWaiting, InTheVoteIsNamedSo) {
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

}  // namespace
}  // namespace syncrun::test
