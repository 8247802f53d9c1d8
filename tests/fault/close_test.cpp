// Workers that die or hang while the session closes, and sessions that are not closed.

#include <csignal>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

class Close : public testing::TestWithParam<int> {
 protected:
  int last() const { return GetParam() - 1; }
};
INSTANTIATE_WITH_WORKERS(Close);

TEST_P(Close, TellsOfAStaticDestructorThatExits) {
  const AtStart told(last(), "end-exit-5");
  Session session(workers(GetParam()));
  const auto pids = session.worker_pids();
  const auto begin = Clock::now();
  const Error error = expect_error([&] { session.close(); }, ErrorKind::worker_lost, {"exited with code 5"});
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().pid, pids.back());
  EXPECT_EQ(error.failure().device, "cpu" + std::to_string(last()));
  EXPECT_EQ(error.failure().phase, "close");
  EXPECT_EQ(error.failure().cause, "exited with code 5");
  expect_over(session, error);
}

TEST_P(Close, WaitsForCallsInFlight) {
  Session session(workers(GetParam()));
  const Board board(session);
  const auto f = session.function([](CpuWorker& worker, BoardView board) { field(board, worker.rank()).fetch_add(1); });
  for (int call = 0; call < 20; ++call) static_cast<void>(f.async(board.data()));
  session.close();
  for (int rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(board.get(rank), 20);
}

TEST_P(Close, TellsOfAWorkerThatDiesInACallInFlight) {
  Session session(workers(GetParam()));
  const auto f = session.function(
      [](CpuWorker& worker, int rank) {
        if (worker.rank() == rank) die(Death::exit_quickly_3);
      },
      "f");
  static_cast<void>(f.async(last()));
  const Error error = expect_error([&] { session.close(); }, ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(error.failure().call, "f");
  expect_over(session, error);
}

TEST_P(Close, MakesEveryUseAnError) {
  Session session(workers(GetParam()));
  const auto f = session.function([](CpuWorker&) { return Sum<int>(1); });
  auto data = session.data<float, 1>({4});
  auto variable = session.shared<float, 1>();
  auto future = f.async();
  const auto device = session.device(0);
  const auto value = session.value(std::vector<float>(4), Shape{4}, device);
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
  expect_usage([&] { static_cast<void>(value.get()); }, closed);
  expect_usage([&] { value.to(device); }, closed);
  expect_usage([&] { session.data(std::vector<float>{1}); }, closed);
  expect_usage([&] { session.shared<float, 1>(); }, closed);
  EXPECT_EQ(future.get(), GetParam()) << "its result was there before";
  EXPECT_NO_THROW(session.close());
}

TEST_P(Close, IsNotNeededWhenAnExceptionUnwindsTheProgram) {
  std::vector<int> pids;
  Clock::time_point thrown;
  try {
    Session session(workers(GetParam()));
    pids = session.worker_pids();
    const auto f = session.function([] {
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
