// A worker dies: in the body of a function, in the destructor of its object, while it is idle.

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

class LostWorkerOf : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
  Session session{workers(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Workers, LostWorkerOf, testing::Values(1, 3), testing::PrintToStringParamName());

TEST_P(LostWorkerOf, WhileIdleIsToldByClose) {
  const auto pids = session.worker_pids();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return !is_alive(pids.back()); }));
  const Error error = error_of([&] { session.close(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().cause, cause_of(Death::kill));
  expect_over(session, error);
}

TEST_P(LostWorkerOf, IsTheFirstWhereAllDie) {
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(
      +[](CpuWorker& worker, BoardView board) {
        field(board, worker.rank()).store(1);
        if (worker.rank() == worker.world_size() - 1) die(Death::exit_quickly_3, board);
        for (;;) ::pause();
      },
      "f");
  const Error error = error_of([&] { f(board.data()); });
  expect_loss(error, {last(), "function", cause_of(Death::exit_quickly_3), "f"}, pids, board.time_of_death());
}

TEST_P(LostWorkerOf, BringsItsLastLinesOnly) {
  const auto f = session.function(+[](CpuWorker& worker, int rank) {
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

}  // namespace
}  // namespace syncrun::test
