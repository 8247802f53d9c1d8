// Workers that die or hang while the session closes, and sessions that are not closed.

#include <csignal>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

constexpr auto kGrace = kSlowdown * 200ms;

class Close : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }

  void expect_lost_at_close(Session& session, const std::string& cause) {
    const auto pids = session.worker_pids();
    const auto begin = Clock::now();
    const Error error = error_of([&] { session.close(); });
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), last());
    EXPECT_EQ(error.failure().pid, pids.back());
    EXPECT_EQ(error.failure().device, "cpu" + std::to_string(last()));
    EXPECT_EQ(error.failure().phase, "close");
    EXPECT_THAT(error.failure().cause, HasSubstr(cause));
    EXPECT_THAT(error.what(), HasSubstr(cause));
    expect_over(session, error);
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, Close, testing::Values(1, 3), testing::PrintToStringParamName());

TEST_P(Close, TellsOfAStaticDestructorThatExits) {
  const AtStart told(last(), "end-exit-5");
  Session session(workers(GetParam()));
  expect_lost_at_close(session, "exited with code 5");
}

TEST_P(Close, EndsWhoHangsAfterTheGracePeriod) {
  const AtStart told(last(), "end-hang");
  auto options = workers(GetParam());
  options.grace = kGrace;
  Session session(options);
  expect_lost_at_close(session, "did not end within " + std::to_string(kGrace.count()) + " ms and was killed");
}

TEST_P(Close, WaitsForCallsInFlight) {
  Session session(workers(GetParam()));
  const Board board(session);
  const auto f =
      session.function(+[](CpuWorker& worker, BoardView board) { field(board, worker.rank()).fetch_add(1); });
  for (int call = 0; call < 20; ++call) static_cast<void>(f.async(board.data()));
  session.close();
  for (int rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(board.get(rank), 20);
}

TEST_P(Close, TellsOfAWorkerThatDiesInACallInFlight) {
  Session session(workers(GetParam()));
  const auto f = session.function(
      +[](CpuWorker& worker, int rank) {
        if (worker.rank() == rank) die(Death::exit_quickly_3);
      },
      "f");
  static_cast<void>(f.async(last()));
  const Error error = error_of([&] { session.close(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().call, "f");
  expect_over(session, error);
}

TEST_P(Close, MakesEveryUseAnError) {
  Session session(workers(GetParam()));
  const auto f = session.function(+[](CpuWorker&) { return Sum<int>(1); });
  auto data = session.data<float, 1>({4});
  auto variable = session.shared<float, 1>();
  auto future = f.async();
  session.close();
  const std::vector<std::string> closed{"the session was closed"};
  expect_usage([&] { f(); }, closed);
  expect_usage([&] { static_cast<void>(f.async()); }, closed);
  expect_usage([&] { static_cast<void>(data.view()); }, closed);
  expect_usage([&] { static_cast<void>(data.write()); }, closed);
  expect_usage([&] { data.resize({8}); }, closed);
  expect_usage([&] { data.free(); }, closed);
  expect_usage([&] { variable.broadcast(std::vector<float>{1}); }, closed);
  expect_usage([&] { static_cast<void>(variable.gather()); }, closed);
  expect_usage([&] { session.wait(); }, closed);
  expect_usage([&] { session.data(std::vector<float>{1}); }, closed);
  expect_usage([&] { session.shared<float, 1>(); }, closed);
  EXPECT_EQ(future.get(), GetParam()) << "its result was there before";
  EXPECT_NO_THROW(session.close());
}

TEST_P(Close, IsNotNeeded) {
  std::vector<int> pids;
  const auto begin = Clock::now();
  {
    Session session(workers(GetParam()));
    pids = session.worker_pids();
    const auto f = session.function(+[] {
      for (;;) ::pause();
    });
    static_cast<void>(f.async());
  }
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
}

TEST_P(Close, IsNotNeededWhenAnExceptionUnwindsTheProgram) {
  std::vector<int> pids;
  Clock::time_point thrown;
  try {
    Session session(workers(GetParam()));
    pids = session.worker_pids();
    const auto f = session.function(+[] {
      for (;;) ::pause();
    });
    const auto future = f.async();
    thrown = Clock::now();
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error& error) {
    EXPECT_LT(Clock::now() - thrown, kErrorLimit);
    EXPECT_STREQ(error.what(), "the program's own");
  }
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
}

}  // namespace
}  // namespace syncrun::test
