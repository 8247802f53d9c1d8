// A worker dies: in the body of a function, in the constructor or destructor of its object, while it is idle.

#include <csignal>
#include <tuple>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

void die_on(CpuWorker& worker, BoardView board, int rank, Death way) {
  if (worker.rank() == rank) die(way, board);
}

class LostWorker : public testing::TestWithParam<std::tuple<Death, int>> {
 protected:
  Death way() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  int last() const { return world_size() - 1; }
};

TEST_P(LostWorker, IsNamedWithRankAndCause) {
  Session session(workers(world_size()));
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(die_on, "die_on");
  const Error error = error_of([&] { f(board.data(), last(), way()); });
  expect_loss(error, {last(), "function", cause_of(way()), "die_on"}, pids, board.time_of_death());
  EXPECT_THAT(error.failure().last_stderr, Contains(kLastWords));
  EXPECT_THAT(error.what(), HasSubstr("[rank " + std::to_string(last()) + "] " + kLastWords));
  expect_over(session, error);
  expect_usage([&] { f(board.data(), 0, Death::kill); }, {"the session is over", error.what()});
}

INSTANTIATE_TEST_SUITE_P(
    By, LostWorker,
    testing::Combine(testing::Values(Death::kill, Death::segfault, Death::abort, Death::exit_quickly_ok,
                                     Death::exit_quickly_3, Death::exit_4, Death::terminate),
                     testing::Values(1, 2, 4)),
    [](const auto& test) { return name_of(std::get<0>(test.param)) + "Of" + std::to_string(std::get<1>(test.param)); });

class LostWorkerOf : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
};
INSTANTIATE_TEST_SUITE_P(Workers, LostWorkerOf, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST_P(LostWorkerOf, WhileIdleIsToldByTheNextCall) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(die_on, "die_on");
  f(board.data(), -1, Death::kill);
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return !is_alive(pids.back()); }));
  const auto called = Clock::now();
  const Error error = error_of([&] { f(board.data(), -1, Death::kill); });
  expect_loss(error, {last(), "idle", cause_of(Death::kill), ""}, pids, called);
  expect_over(session, error);
}

TEST_P(LostWorkerOf, WhileIdleIsToldByClose) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return !is_alive(pids.back()); }));
  const Error error = error_of([&] { session.close(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().cause, cause_of(Death::kill));
  expect_over(session, error);
}

TEST_P(LostWorkerOf, LeavesRoomForANewSession) {
  {
    Session session(workers(GetParam()));
    const Board board(session);
    EXPECT_EQ(error_of([&] { session.function(die_on)(board.data(), last(), Death::kill); }).kind(),
              ErrorKind::worker_lost);
  }
  Session session(workers(GetParam()));
  expect_usable(session);
}

TEST_P(LostWorkerOf, IsTheFirstWhereAllDie) {
  Session session(workers(GetParam()));
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

TEST_P(LostWorkerOf, TakesItsChildrenAlong) {
  Session session(workers(GetParam()));
  const Board board(session);
  const auto f = session.function(+[](CpuWorker& worker, BoardView board, int rank) {
    if (worker.rank() != rank) return;
    const int child = ::fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child == 0) {
      ::execlp("sleep", "sleep", "1000", nullptr);
      ::_exit(127);
    }
    field(board, 0).store(child);
    die(Death::kill, board);
  });
  EXPECT_EQ(error_of([&] { f(board.data(), last()); }).kind(), ErrorKind::worker_lost);
  const auto child = static_cast<pid_t>(board.get(0));
  ASSERT_GT(child, 0);
  EXPECT_TRUE(eventually([&] { return !is_alive(child); }));
}

TEST_P(LostWorkerOf, BringsItsLastLinesOnly) {
  Session session(workers(GetParam()));
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
  Fragile(CpuWorker& worker, int rank, Death way, bool in_destructor)
      : dies_(worker.rank() == rank), way_(way), in_destructor_(in_destructor) {
    if (dies_ && !in_destructor_) die(way_);
  }
  Fragile(const Fragile&) = delete;
  Fragile& operator=(const Fragile&) = delete;
  ~Fragile() {
    if (dies_ && in_destructor_) die(way_);
  }
  Sum<int> one() { return 1; }

 private:
  bool dies_;
  Death way_;
  bool in_destructor_;
};

TEST_P(LostWorkerOf, InAConstructorIsNamedSo) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const auto called = Clock::now();
  const auto object = session.replicate<Fragile>(last(), Death::segfault, false);
  const Error error = error_of([&] { session.wait(); });
  expect_loss(error, {last(), "function", cause_of(Death::segfault), "construction of a replicated object"}, pids,
              called);
  expect_over(session, error);
}

TEST_P(LostWorkerOf, InADestructorIsNamedSo) {
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  {
    const auto object = session.replicate<Fragile>(last(), Death::segfault, true);
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
