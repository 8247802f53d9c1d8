// Several calls are in flight when one fails. Those that depend on it fail too. The others, and calls made after the
// error, do not.

#include <csignal>
#include <stdexcept>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

Sum<int> one_or_throw(CpuWorker& worker, BoardView board, int rank, int wait_for) {
  while (field(board, 0).load() < wait_for) ::sched_yield();
  if (worker.rank() == rank) throw std::runtime_error("the first cause");
  return 1;
}

/// A call depends on the calls before it that have the same variable.
Sum<int> one_or_throw_with(CpuWorker& worker, BoardView board, Local<int, 1>, int rank, int wait_for) {
  return one_or_throw(worker, board, rank, wait_for);
}

class InFlight : public WithWorkers {};
INSTANTIATE_WITH_WORKERS(InFlight);

TEST_P(InFlight, CallsThatDependOnTheFailedOneFailWithTheSameCauseAndOthersDoNot) {
  Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  const auto unrelated = session.function(one_or_throw, "unrelated");
  auto before = f.async(board.data(), variable, -1, 0);
  auto fails = f.async(board.data(), variable, last(), 1);
  std::vector<Future<Sum<int>>> after;
  std::vector<Future<Sum<int>>> others;
  for (int call = 0; call < 10; ++call) {
    after.push_back(f.async(board.data(), variable, -1, 0));
    others.push_back(unrelated.async(board.data(), -1, 0));
  }
  EXPECT_EQ(before.get(), GetParam());
  board.set(0, 1);
  for (auto& future : others) EXPECT_EQ(future.get(), GetParam());
  const Error cause = error_of([&] { fails.get(); });
  EXPECT_EQ(cause.rank(), last());
  for (auto& future : after) {
    const Error error = expect_error([&] { future.get(); }, ErrorKind::function);
    EXPECT_EQ(error.rank(), last());
    EXPECT_STREQ(error.what(), cause.what());
  }
  EXPECT_EQ(f(board.data(), variable, -1, 0), GetParam());
  expect_usable(session);
}

TEST_P(InFlight, AFailureThatTheProgramHasNotSeenFailsLaterCallsOnTheSameVariable) {
  const Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  auto fails = f.async(board.data(), variable, last(), 0);
  while (!fails.is_ready()) ::sched_yield();  // the master knows the failure, and the program does not
  auto after = f.async(board.data(), variable, -1, 0);
  EXPECT_TRUE(after.is_ready());
  const Error error = error_of([&] { after.get(); });
  EXPECT_EQ(error.failure().cause, "the first cause");
  EXPECT_EQ(f(board.data(), variable, -1, 0), GetParam()) << "it has been seen now";
  EXPECT_STREQ(error_of([&] { fails.get(); }).what(), error.what());
}

TEST_P(InFlight, ACallThatCouldNotBeginPassesItsFailureOnToTheCallsAfterIt) {
  const Board board(session);
  auto x = session.shared("x", std::vector<int>{1});
  auto y = session.shared("y", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  const auto add = session.function([](Local<int, 1> x, Local<const int, 1> y) { x[0] += y[0]; });
  const auto twice = session.function([](Local<int, 1> x) { x[0] *= 2; });
  auto fails = f.async(board.data(), y, last(), 0);
  while (!fails.is_ready()) ::sched_yield();  // the master knows the failure, and the program does not
  auto reads_y = add.async(x, y);
  auto reads_x = twice.async(x);
  EXPECT_EQ(error_of([&] { reads_x.get(); }).failure().cause, "the first cause");
  EXPECT_EQ(error_of([&] { reads_y.get(); }).failure().cause, "the first cause");
  EXPECT_EQ(error_of([&] { fails.get(); }).failure().cause, "the first cause");
  twice(x);
  EXPECT_EQ(x.get(last())[0], 2) << "neither of the calls has run";
}

TEST_P(InFlight, AFailureThatTheProgramHasNotSeenIsThrownWhereTheVariableIsRead) {
  const Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  auto fails = f.async(board.data(), variable, last(), 0);
  EXPECT_EQ(error_of([&] { static_cast<void>(variable.get(last())); }).failure().cause, "the first cause");
  EXPECT_EQ(variable.get(last())[0], 1);
  EXPECT_EQ(error_of([&] { fails.get(); }).failure().cause, "the first cause");
}

TEST_P(InFlight, AFailureThatTheProgramHasNotSeenStaysWithItsRanks) {
  if (GetParam() < 2) GTEST_SKIP() << "there is no other rank";
  const Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  auto first = f.on_rank(0).async(board.data(), variable, 0, 0);
  auto second = f.on_rank(last()).async(board.data(), variable, last(), 0);
  while (!first.is_ready() || !second.is_ready()) ::sched_yield();
  if (GetParam() > 2) {
    EXPECT_EQ(f.on_rank(1)(board.data(), variable, -1, 0), 1) << "neither ran there";
  }
  EXPECT_EQ(error_of([&] { second.get(); }).rank(), last());
  EXPECT_EQ(f.on_rank(last())(board.data(), variable, -1, 0), 1);
  EXPECT_EQ(error_of([&] { f.on_rank(0)(board.data(), variable, -1, 0); }).rank(), 0) << "this one was not seen yet";
  EXPECT_EQ(f(board.data(), variable, -1, 0), GetParam());
}

TEST_P(InFlight, ACallOnOneRankIsOverWhileAnotherRankIsBusy) {
  if (GetParam() < 2) GTEST_SKIP() << "there is no other rank";
  Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw, "one_or_throw");
  const auto writes = session.function(one_or_throw_with, "writes").on_rank(last());
  auto slow = f.on_rank(0).async(board.data(), -1, 1);  // until the board says so
  auto quick = writes.async(board.data(), variable, -1, 0);
  EXPECT_EQ(quick.get(), 1);
  for (int call = 0; call < 100; ++call) EXPECT_EQ(writes(board.data(), variable, -1, 0), 1);
  std::vector<Future<Sum<int>>> many;
  for (int call = 0; call < 100; ++call) many.push_back(writes.async(board.data(), variable, -1, 0));
  for (auto& future : many) EXPECT_EQ(future.get(), 1);
  EXPECT_EQ(variable.get(last())[0], 1);
  variable.set(last(), std::vector<int>{2});
  EXPECT_FALSE(slow.is_ready());
  board.set(0, 1);
  EXPECT_EQ(slow.get(), 1);
}

TEST_P(InFlight, MoreCallsThanAnInboxHoldsGiveTheRightResult) {
  const Board board(session);
  const auto f = session.function(one_or_throw, "one_or_throw");
  std::vector<Future<Sum<int>>> futures;
  for (int call = 0; call < 200; ++call) futures.push_back(f.async(board.data(), call % 50 == 49 ? last() : -1, 0));
  for (int call = 0; call < 200; ++call) {
    auto& future = futures[static_cast<std::size_t>(call)];
    if (call % 50 == 49) {
      EXPECT_EQ(error_of([&] { future.get(); }).failure().cause, "the first cause");
      continue;
    }
    EXPECT_EQ(future.get(), GetParam());
  }
  expect_usable(session);
}

TEST_P(InFlight, AFailedCallBeforeAnUpdateLeavesNobodyInTheVote) {
  Board board(session);
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{1});
  const auto fails = session.function([](CpuWorker& worker, BoardView board, Local<float, 1>, int rank) {
    if (worker.rank() != rank) return;
    while (field(board, 0).load() == 0) ::sched_yield();
    throw std::runtime_error("the first cause");
  });
  const auto update = session.function([](CpuWorker& worker, BoardView board, Update<op::sum, float, 1> variable) {
    field(board, 1 + worker.rank()).store(1);
    variable.value()[0] = 7;
  });
  auto first = fails.async(board.data(), variable, last());
  auto second = update.async(board.data(), variable, {.timeout = 3s});
  // All other ranks have finished the first call and wait in the vote of the second call.
  for (int rank = 0; rank < last(); ++rank) {
    ASSERT_TRUE(board.reaches(1 + rank, 1));
    ASSERT_TRUE(falls_asleep(session.worker_pids()[static_cast<std::size_t>(rank)]));
  }
  board.set(0, 1);
  const auto begin = Clock::now();
  EXPECT_EQ(error_of([&] { first.get(); }).failure().cause, "the first cause");
  EXPECT_EQ(error_of([&] { second.get(); }).failure().cause, "the first cause");
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
  for (int rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(variable.get(rank)[0], 1);
  update(board.data(), variable);
  EXPECT_EQ(variable.get(0)[0], 7);
}

TEST_P(InFlight, AFailedCallBeforeACollectiveLeavesNobodyInIt) {
  const Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto fails = session.function(one_or_throw_with, "fails");
  const auto meets = session.function([](CpuWorker& worker, Comm& comm, Local<int, 1>) {
    std::vector<float> values(100'000, static_cast<float>(worker.rank()));
    comm.all_reduce(std::span<float>(values), Reduction::sum);
    comm.barrier();
  });
  for (int round = 0; round < 20; ++round) {
    auto first = fails.async(board.data(), variable, round % GetParam(), 0);
    auto second = meets.async(variable, {.timeout = 3s});
    EXPECT_EQ(error_of([&] { first.get(); }).failure().cause, "the first cause");
    EXPECT_EQ(error_of([&] { second.get(); }).failure().cause, "the first cause");
    meets(variable);
  }
  expect_usable(session);
}

/// Waits until the master knows the failure of the call, and then drops the future.
void drop_when_it_has_failed(Future<Sum<int>>&& future) {
  const Future<Sum<int>> own = std::move(future);
  while (!own.is_ready()) ::sched_yield();
}

TEST_P(InFlight, ADroppedFailureSurfacesAtWaitOnceWhetherItWasKnownOrNot) {
  const Board board(session);
  const auto f = session.function(one_or_throw, "one_or_throw");
  auto held = f.async(board.data(), last(), 0);
  for (const bool is_known : {false, true}) {
    if (is_known) drop_when_it_has_failed(f.async(board.data(), last(), 0));
    else static_cast<void>(f.async(board.data(), last(), 0));
    EXPECT_EQ(error_of([&] { session.wait(); }).failure().cause, "the first cause");
    EXPECT_NO_THROW(session.wait()) << "the other failure can still be fetched";
  }
  EXPECT_EQ(error_of([&] { held.get(); }).failure().cause, "the first cause");
  expect_usable(session);
  EXPECT_NO_THROW(session.close());
}

TEST_P(InFlight, ADroppedFailureSurfacesAtCloseAndTheWorkersAreGone) {
  session.close();
  for (const bool is_known : {false, true}) {
    Session own(workers(GetParam()));
    const auto pids = own.worker_pids();
    const Board board(own);
    const auto f = own.function(one_or_throw, "one_or_throw");
    if (is_known) drop_when_it_has_failed(f.async(board.data(), last(), 0));
    else static_cast<void>(f.async(board.data(), last(), 0));
    EXPECT_EQ(error_of([&] { own.close(); }).failure().cause, "the first cause");
    for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
    EXPECT_NO_THROW(own.close());
  }
}

TEST_P(InFlight, AFutureThatIsOverwrittenAfterItsCallFailedIsDropped) {
  const Board board(session);
  const auto f = session.function(one_or_throw, "one_or_throw");
  auto future = f.async(board.data(), last(), 0);
  session.wait();  // the program still has the future, which has the failure
  future = f.async(board.data(), -1, 0);
  EXPECT_EQ(future.get(), GetParam());
  EXPECT_EQ(error_of([&] { session.synchronize(session.device(0)); }).failure().cause, "the first cause");
  EXPECT_NO_THROW(session.close());
}

TEST_P(InFlight, ADroppedCallThatFailedAtOnceSurfacesAtWait) {
  const Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  auto fails = f.async(board.data(), variable, last(), 0);
  while (!fails.is_ready()) ::sched_yield();
  static_cast<void>(f.async(board.data(), variable, -1, 0));  // no worker sees it
  EXPECT_EQ(error_of([&] { session.wait(); }).failure().cause, "the first cause");
  EXPECT_NO_THROW(session.wait());
}

TEST_P(InFlight, AFetchedFailureDoesNotSurfaceAgain) {
  const Board board(session);
  const auto f = session.function(one_or_throw, "one_or_throw");
  for (int call = 0; call < 100; ++call) {
    auto future = f.async(board.data(), last(), 0);
    if (call % 2 == 0) session.wait();
    EXPECT_EQ(error_of([&] { future.get(); }).failure().cause, "the first cause");
  }
  EXPECT_NO_THROW(session.wait());
  EXPECT_NO_THROW(session.close());
}

TEST_P(InFlight, ADroppedFailureThatABlockingCallHasThrownIsNotThrownAgain) {
  Board board(session);
  auto variable = session.shared("v", std::vector<int>{1});
  const auto f = session.function(one_or_throw_with, "one_or_throw");
  static_cast<void>(f.async(board.data(), variable, last(), 1));
  board.set(0, 1);
  EXPECT_EQ(error_of([&] { f(board.data(), variable, -1, 1); }).failure().cause, "the first cause");
  EXPECT_NO_THROW(session.wait());
  EXPECT_NO_THROW(session.close());
}

TEST_P(InFlight, AllOfThemAreLostWithTheWorker) {
  const auto pids = session.worker_pids();
  const Board board(session);
  const auto f = session.function(
      [](CpuWorker& worker, BoardView board, int rank) {
        if (worker.rank() == rank) die(Death::exit_quickly_3, board);
      },
      "f");
  f(board.data(), -1);
  auto lost = f.async(board.data(), last());
  std::vector<Future<void>> after;
  for (int call = 0; call < 10; ++call) after.push_back(f.async(board.data(), -1));
  const Error cause = error_of([&] { lost.get(); });
  expect_loss(cause, {last(), "function", cause_of(Death::exit_quickly_3), "f"}, pids, board.time_of_death());
  for (auto& future : after) {
    EXPECT_TRUE(future.is_ready());
    const Error error = expect_error([&] { future.get(); }, ErrorKind::worker_lost);
    EXPECT_STREQ(error.what(), cause.what());
  }
  expect_over(session, cause);
}

TEST_P(InFlight, AnObjectGivenUpAfterAFailureIsStillDestroyed) {
  struct Counted {
    explicit Counted(int) { living += 1; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() { living -= 1; }
    Sum<int> count() { return living; }
    static int& counter() {
      static int count = 0;
      return count;
    }
    int& living = counter();
  };
  Board board(session);
  const auto f = session.function(one_or_throw, "one_or_throw");
  {
    auto object = std::optional(session.replicate<Counted>(1));
    auto fails = f.async(board.data(), last(), 1);
    object.reset();  // while a call that will fail is in flight
    board.set(0, 1);
    auto variable = std::optional(session.shared<float, 1>("v"));
    EXPECT_EQ(error_of([&] { fails.get(); }).failure().cause, "the first cause");
  }
  const auto object = session.replicate<Counted>(1);
  EXPECT_EQ(session.function(&Counted::count, object)(), GetParam()) << "one on each rank, and no others";
}

TEST_P(InFlight, ACallDoesNotDelayWhoMakesAReplicatedObject) {
  struct Named {
    explicit Named(int number) : number_(number) {}
    Sum<int> number() const { return number_; }
    int number_;
  };
  Board board(session);
  auto busy = session.function(one_or_throw).async(board.data(), -1, 1);
  const auto object = session.replicate<Named>(2);
  auto number = session.function(&Named::number, object).async();
  EXPECT_EQ(board.get(0), 0) << "the call is still there";
  board.set(0, 1);
  EXPECT_EQ(number.get(), 2 * GetParam());
  EXPECT_EQ(busy.get(), GetParam());
}

}  // namespace
}  // namespace syncrun::test
