// Commands from their publication to their result, tested without processes. The test does what the workers would do.

#include "launcher/calls/command_runner.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

/// A command after all that a test publishes.
constexpr std::uint64_t kAhead = 1U << 20U;

/// Records how the session would have ended.
class NotedEnds final : public SessionEnds {
 public:
  explicit NotedEnds(FakePool& pool) : pool_(pool) {}
  std::vector<std::string> log;

  /// Continues as if the lost worker had been replaced.
  void end_with_loss(std::uint64_t id) override {
    log.push_back("loss while waiting for " + std::to_string(id));
    pool_.control().header().lost.store(0);
    pool_.finish_all(kAhead);
  }
  [[noreturn]] void end_with(const Error& error) override {
    log.emplace_back(error.what());
    throw Error(error);
  }

 private:
  FakePool& pool_;
};

class Commands : public testing::Test {
 protected:
  Commands() { calls.attach(pool.control()); }
  /// Publishes a call that has a result.
  std::uint64_t publish(CallResult& result, Milliseconds limit = Milliseconds(0)) {
    return publish(result, calls.all_ranks(), limit);
  }
  std::uint64_t publish(CallResult& result, const RankSet& ranks, Milliseconds limit = Milliseconds(0)) {
    runner.next_command(ranks);
    calls.next(ranks, limit).begin<CallPayload>();
    calls.next_in_flight().result = &result;
    calls.next_in_flight().what = "step";
    return runner.publish();
  }
  void run(const char* what) {
    runner.run_system(runner.settle(calls.all_ranks()), what, "weights",
                      [](CommandHead& command, InFlight&) { command.begin<UnpinPayload>(); });
  }
  template <class Action>
  static std::string text_of(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  static std::string text_of_error(const std::exception_ptr& error) {
    return text_of([&] { std::rethrow_exception(error); });
  }

  FakePool pool{2};
  CallTable calls;
  RankDevices devices{{{}, {}}};
  LossReport report{pool, calls, {"cpu0", "cpu1"}};
  SharedHeap heap{pool.segment(), pool.control().header().heap_offset, FakePool::kHeapBytes};
  SessionState state;
  NotedEnds ends{pool};
  CommandRunner runner{{.pool = pool,
                        .calls = calls,
                        .report = report,
                        .memory = {pool.segment(), heap},
                        .devices = devices,
                        .state = state,
                        .ends = ends,
                        .profiler = nullptr,
                        .call_timeout = Milliseconds(0)}};
};

TEST_F(Commands, GiveTheirResultsOnceTheirRanksAreDone) {
  CallResult result;
  const auto id = publish(result);
  EXPECT_TRUE(calls.is_in_flight(id));
  EXPECT_FALSE(result.finished);
  pool.finish_all(id);
  runner.await(id);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.error, nullptr);
  EXPECT_TRUE(calls.is_idle());
}

TEST_F(Commands, FailWithTheFirstFailureOfARank) {
  CallResult result;
  const auto id = publish(result);
  pool.fail(0, id, 20, "the second failure");
  pool.fail(1, id, 10, "the first failure");
  pool.finish_all(id);
  runner.await(id);
  EXPECT_THAT(text_of_error(result.error), HasSubstr("the first failure"));
  EXPECT_THAT(ends.log, ElementsAre()) << "the session goes on";
}

TEST_F(Commands, ShareTheFailureOfThoseOnWhichTheyDependAndNoOther) {
  CallResult first;
  CallResult second;
  CallResult unrelated;
  const auto id = publish(first);
  runner.next_command(calls.all_ranks()).begin<CallPayload>();
  calls.depend_on(id);
  calls.next_in_flight().result = &second;
  runner.publish();
  publish(unrelated);
  EXPECT_NE(heap.used_bytes(), 0U) << "the workers read there what it depends on";
  pool.fail(1, id, 10, "the cause");
  pool.fail(0, id + 1, 0, "");
  pool.finish_all(id + 2);
  runner.drain_all();
  EXPECT_NE(first.error, nullptr);
  EXPECT_EQ(second.error, first.error);
  EXPECT_EQ(unrelated.error, nullptr);
  EXPECT_EQ(heap.used_bytes(), 0U);
}

TEST_F(Commands, AreCollectedAfterThoseOnWhichTheyDepend) {
  CallResult first;
  CallResult second;
  const auto id = publish(first);
  runner.next_command(RankSet::only(0)).begin<CallPayload>();
  calls.depend_on(id);
  calls.next_in_flight().result = &second;
  runner.publish();
  pool.fail(1, id, 10, "the cause");
  pool.finish_all(id + 1);
  runner.await(id + 1);
  EXPECT_TRUE(first.finished);
  EXPECT_NE(second.error, nullptr) << "whoever is asked for first";
}

TEST_F(Commands, OfOneRankAreCollectedWhileAnotherRankIsBusy) {
  CallResult slow;
  CallResult quick;
  publish(slow, RankSet::only(0));
  const auto id = publish(quick, RankSet::only(1));
  pool.finish(1, id);
  runner.await(id);
  EXPECT_TRUE(quick.finished);
  EXPECT_FALSE(slow.finished);
}

TEST_F(Commands, ThatNobodyWaitsForReportTheirFailureLater) {
  pool.finish_all(kAhead);
  pool.fail(1, 1, 10, "the destructor threw");
  const auto fill = [](CommandHead& command, InFlight&) { command.begin<DestroyPayload>(); };
  runner.launch_system(runner.settle(calls.all_ranks()), "destruction", "", fill);
  EXPECT_EQ(calls.failures().dropped(), nullptr);
  runner.drain_all();
  EXPECT_THAT(text_of_error(calls.failures().dropped()), HasSubstr("the destructor threw"));
}

TEST_F(Commands, ThatAreNoCallsThrowWhatFailed) {
  pool.finish_all(kAhead);
  EXPECT_NO_THROW(run("unpin"));
  pool.fail(1, calls.last_published() + 1, 10, "no such memory");
  EXPECT_THAT(text_of([&] { run("unpin"); }), HasSubstr("no such memory"));
}

TEST_F(Commands, ThatCannotBeFilledInLeaveNothingBehind) {
  const auto fill = [&](CommandHead&, InFlight& in_flight) {
    in_flight.temporaries.push_back(heap.allocate(100, SharedHeap::Contents::any, "values"));
    throw Error(ErrorKind::usage, "no such row");
  };
  EXPECT_EQ(text_of([&] { runner.run_system(runner.settle(calls.all_ranks()), "set", "weights", fill); }),
            "no such row");
  EXPECT_EQ(heap.used_bytes(), 0U);
  EXPECT_EQ(calls.last_published(), 0U);
  pool.finish_all(kAhead);
  EXPECT_NO_THROW(run("unpin"));
}

TEST_F(Commands, FreeWhatTheyTravelledInAlsoIfTheyFail) {
  pool.finish_all(kAhead);
  pool.fail(0, 1, 10, "no such memory");
  const auto fill = [&](CommandHead& command, InFlight& in_flight) {
    in_flight.temporaries.push_back(heap.allocate(100, SharedHeap::Contents::any, "values"));
    command.begin<UnpinPayload>();
  };
  EXPECT_THROW(runner.run_system(runner.settle(calls.all_ranks()), "set", "weights", fill), Error);
  EXPECT_EQ(heap.used_bytes(), 0U);
}

TEST_F(Commands, EndTheSessionWhereTheyAreNotOverInTime) {
  CallResult result;
  const auto id = publish(result, Milliseconds(20));
  pool.finish(0, id);
  pool.set_phase(1, id, Phase::function);
  EXPECT_THAT(text_of([&] { runner.drain_all(); }), HasSubstr("rank 1 (cpu1, pid 101)"));
  ASSERT_EQ(ends.log.size(), 1U);
}

TEST_F(Commands, GoOnAfterALossThatWasMadeGood) {
  CallResult result;
  const auto id = publish(result);
  pool.die(1, FakePool::killed());
  EXPECT_TRUE(runner.has_lost_worker());
  runner.await(id);
  EXPECT_THAT(ends.log, ElementsAre("loss while waiting for 1"));
  EXPECT_TRUE(result.finished);
}

TEST_F(Commands, ThatWereGivenUpAreNotCollectedBeforeTheLossIsSeen) {
  CallResult result;
  const auto id = publish(result, RankSet::only(0));
  pool.fail(0, id, 0, "a worker was lost");
  pool.finish_all(id);
  pool.die(1, FakePool::killed());
  runner.collect_complete();
  EXPECT_FALSE(result.finished);
  runner.await(id);
  EXPECT_THAT(ends.log, ElementsAre("loss while waiting for 1"));
}

TEST_F(Commands, EndTheSessionWithTheDeviceThatCannotBeUsedAnyMore) {
  CallResult result;
  const auto id = publish(result);
  pool.fail(1, id, 10, "the context is lost");
  calls.outbox(id, 1).is_fatal = true;
  pool.finish_all(id);
  EXPECT_THAT(text_of([&] { runner.drain_all(); }), HasSubstr("the context is lost"));
  EXPECT_EQ(ends.log.size(), 1U);
  EXPECT_TRUE(result.finished) << "its own result comes first";
}

TEST_F(Commands, WaitForTheOldestOfARankThatHasAFullInbox) {
  std::vector<CallResult> results(kInboxSize);
  for (auto& result : results) publish(result, RankSet::only(0));
  pool.finish(0, 1);
  runner.next_command(RankSet::only(1));
  EXPECT_FALSE(results[0].finished) << "the other rank has room";
  runner.next_command(RankSet::only(0));
  EXPECT_TRUE(results[0].finished);
  EXPECT_FALSE(results[1].finished);
}

}  // namespace
}  // namespace syncrun::test
