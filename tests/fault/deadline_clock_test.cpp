// The time that counts towards the limit of a call: time in which the master waits and the call is the oldest of its
// ranks.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

void sleep_for(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
void work_in_the_master(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

/// Takes 200 ms after the master has opened its field of the board.
Sum<int> wait_for_master(Broadcast<const int, 1> x, BoardView board) {
  while (field(board, 0).load() == 0) sleep_for(1);
  sleep_for(200);
  return x[0];
}

/// Stops this process, the master, for `length` after `after`, several times. The workers continue.
class StopOfTheMaster {
 public:
  StopOfTheMaster(std::chrono::milliseconds after, std::chrono::milliseconds length, int times = 1) {
    const pid_t master = ::getpid();
    child_ = fork_when_quiet();
    if (child_ != 0) return;
    for (int i = 0; i < times; ++i) {
      std::this_thread::sleep_for(after);
      ::kill(master, SIGSTOP);
      std::this_thread::sleep_for(length);
      ::kill(master, SIGCONT);
    }
    ::_exit(0);
  }
  ~StopOfTheMaster() { ::waitpid(child_, nullptr, 0); }
  StopOfTheMaster(const StopOfTheMaster&) = delete;
  StopOfTheMaster& operator=(const StopOfTheMaster&) = delete;

 private:
  pid_t child_;
};

class CallClock : public testing::Test {
 protected:
  Session session{workers(2)};
  Board board{session};
  Data<int, 1> x = session.data(std::vector<int>{1});
  decltype(session.function(sleep_for, "f")) f = session.function(sleep_for, "f");
  decltype(session.function(wait_for_master, "g")) g = session.function(wait_for_master, "g");
};

TEST_F(CallClock, StandsStillWhileTheMasterWorksWhateverWaitComesThen) {
  const std::vector<std::function<void(Future<Sum<int>>)>> waits{[&](auto future) { EXPECT_EQ(future.get(), 2); },
                                                                 [&](auto future) {
                                                                   { const auto dropped = std::move(future); }
                                                                   session.wait();
                                                                 },
                                                                 [&](auto future) {
                                                                   f(0, {.timeout = 2s});
                                                                   EXPECT_EQ(future.get(), 2);
                                                                 },
                                                                 [&](auto future) {
                                                                   x.write()[0] = 3;
                                                                   EXPECT_EQ(future.get(), 2);
                                                                 }};
  for (const auto& wait : waits) {
    board.set(0, 0);
    auto future = g.async(x, board.data(), {.timeout = 2s});
    work_in_the_master(2500ms);
    board.set(0, 1);
    EXPECT_NO_THROW(wait(std::move(future)));
  }
}

TEST_F(CallClock, StandsStillWhileTheMasterIsStoppedInItsOwnWork) {
  auto future = f.async(5000, {.timeout = 3s});
  const StopOfTheMaster stop(400ms, 4s);
  work_in_the_master(800ms);
  EXPECT_NO_THROW(future.get());
}

TEST_F(CallClock, StandsStillWhileTheMasterIsStoppedInAWait) {
  const StopOfTheMaster stop(200ms, 1s, 4);
  EXPECT_NO_THROW(f(5000, {.timeout = 2600ms}))
      << "1 s is waited; stops that counted half a second each would be too much";
}

TEST_F(CallClock, StandsStillWhileAnOlderCallRuns) {
  const auto begin = Clock::now();
  auto older = f.async(3000);
  EXPECT_NO_THROW(f(100, {.timeout = 2s}));
  EXPECT_GE(Clock::now() - begin, 3s) << "a limit does not cover the calls before it";
  older.get();
}

TEST_F(CallClock, RunsInEveryWaitOfTheMasterAlsoOfACallOnAnotherRank) {
  const auto hang = session.function([] { std::this_thread::sleep_for(1h); }, "hang");
  auto hangs = hang.on_rank(1).async({.timeout = 300ms});
  auto longer = f.on_rank(0).async(3'600'000);
  const auto begin = Clock::now();
  const Error error = expect_error([&] { longer.get(); }, ErrorKind::timeout, {"rank 0 (cpu0", "takes no part"});
  const auto took = Clock::now() - begin;
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.failure().call, "hang");
  EXPECT_GE(took, 300ms);
  EXPECT_LT(took, 300ms + kErrorLimit);
}

TEST_F(CallClock, RunsBetweenPollsAndIsReadyThenSaysSo) {
  auto future = f.async(3'600'000, {.timeout = 400ms});
  const auto begin = Clock::now();
  while (!future.is_ready()) work_in_the_master(5ms);
  EXPECT_GE(Clock::now() - begin, 400ms);
  EXPECT_LT(Clock::now() - begin, 400ms + kErrorLimit);
  expect_error([&] { future.get(); }, ErrorKind::timeout);
}

TEST_F(CallClock, CountsHalfASecondAtMostBetweenTwoPolls) {
  auto future = g.async(x, board.data(), {.timeout = 3s});
  EXPECT_FALSE(future.is_ready());
  work_in_the_master(4s);
  EXPECT_FALSE(future.is_ready()) << "it is not late, and not over";
  board.set(0, 1);
  EXPECT_NO_THROW(future.get());
}

TEST_F(CallClock, StandsStillWhileTheMasterIsStoppedBetweenTwoPolls) {
  auto future = f.async(5000, {.timeout = 2600ms});  // 1 s of waiting counts, and up to 100 ms of each stop
  const StopOfTheMaster stop(200ms, 1s, 4);
  while (!future.is_ready()) work_in_the_master(5ms);
  EXPECT_NO_THROW(future.get());
}

TEST_F(CallClock, CountsNothingBeforeTheFirstPoll) {
  auto future = g.async(x, board.data(), {.timeout = 2s});
  work_in_the_master(3s);
  EXPECT_FALSE(future.is_ready());
  board.set(0, 1);
  EXPECT_NO_THROW(future.get());
}

TEST_F(CallClock, RunsWhileTheMasterWaitsForABatch) {
  using Numbers = Data<int, 1>;
  auto queue = session.producers(
      1,
      +[](Producer<Numbers>& out) {
        std::this_thread::sleep_for(5s);
        out.next().push();
      },
      BatchShapes<Numbers>{{1}});
  auto future = f.async(3'600'000, {.timeout = 300ms});
  const auto begin = Clock::now();
  const Error error = error_of([&] { static_cast<void>(queue.next()); });
  EXPECT_LT(Clock::now() - begin, 300ms + kErrorLimit);
  EXPECT_EQ(error.failure().call, "f");
}

}  // namespace
}  // namespace syncrun::test
