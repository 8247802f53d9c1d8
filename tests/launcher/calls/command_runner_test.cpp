// Commands from their publication to their result, tested without processes. The test does what the workers would do.

#include "launcher/calls/command_runner.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

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
  Commands() { ring.attach(pool.control()); }
  /// Publishes a call that has a result.
  std::uint64_t publish(CallResult& result, Milliseconds limit = Milliseconds(0)) {
    runner.next_command().begin<CallPayload>();
    ring.next(limit).begin<CallPayload>();
    ring.next_in_flight().result = &result;
    ring.next_in_flight().what = "step";
    return runner.publish();
  }
  void run(const char* what) {
    runner.run_system(what, "weights", [](CommandHead& command, InFlight&) { command.begin<UnpinPayload>(); });
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
  CallRing ring;
  RankDevices devices{{{}, {}}};
  LossReport report{pool, ring, {"cpu0", "cpu1"}};
  SharedHeap heap{pool.segment(), pool.control().header().heap_offset, FakePool::kHeapBytes};
  SessionState state;
  NotedEnds ends{pool};
  CommandRunner runner{{.pool = pool,
                        .ring = ring,
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
  EXPECT_EQ(pool.control().header().published.load(), id);
  EXPECT_FALSE(result.finished);
  pool.finish_all(id);
  runner.drain(id);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.error, nullptr);
  EXPECT_TRUE(ring.is_idle());
}

TEST_F(Commands, FailWithTheFirstFailureOfARank) {
  CallResult result;
  const auto id = publish(result);
  pool.fail(0, id, 20, "the second failure");
  pool.fail(1, id, 10, "the first failure");
  pool.finish_all(id);
  runner.drain(id);
  EXPECT_THAT(text_of_error(result.error), HasSubstr("the first failure"));
  EXPECT_THAT(ends.log, ElementsAre()) << "the session goes on";
}

TEST_F(Commands, ThatWerePublishedBeforeAFailureWasSeenShareItsCause) {
  CallResult first;
  CallResult second;
  const auto id = publish(first);
  publish(second);
  pool.fail(1, id, 10, "the cause");
  pool.fail(0, id + 1, 0, "");
  pool.finish_all(id + 1);
  runner.drain_all();
  EXPECT_NE(first.error, nullptr);
  EXPECT_EQ(second.error, first.error);
}

TEST_F(Commands, ThatAreNoCallsThrowWhatFailed) {
  pool.finish_all(kAhead);
  EXPECT_NO_THROW(run("unpin"));
  pool.fail(1, ring.last_published() + 1, 10, "no such memory");
  EXPECT_THAT(text_of([&] { run("unpin"); }), HasSubstr("no such memory"));
}

TEST_F(Commands, ThatCannotBeFilledInLeaveNothingBehind) {
  const auto fill = [&](CommandHead&, InFlight& in_flight) {
    in_flight.temporaries.push_back(heap.allocate(100, SharedHeap::Contents::any, "values"));
    throw Error(ErrorKind::usage, "no such row");
  };
  EXPECT_EQ(text_of([&] { runner.run_system("set", "weights", fill); }), "no such row");
  EXPECT_EQ(heap.used_bytes(), 0U);
  EXPECT_EQ(ring.last_published(), 0U);
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
  EXPECT_THROW(runner.run_system("set", "weights", fill), Error);
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
  runner.drain(id);
  EXPECT_THAT(ends.log, ElementsAre("loss while waiting for 1"));
  EXPECT_TRUE(result.finished);
}

TEST_F(Commands, EndTheSessionWithTheDeviceThatCannotBeUsedAnyMore) {
  CallResult result;
  const auto id = publish(result);
  pool.fail(1, id, 10, "the context is lost");
  pool.control().outbox(id, 1).is_fatal = true;
  pool.finish_all(id);
  EXPECT_THAT(text_of([&] { runner.drain_all(); }), HasSubstr("the context is lost"));
  EXPECT_EQ(ends.log.size(), 1U);
  EXPECT_TRUE(result.finished) << "its own result comes first";
}

TEST_F(Commands, TakeASlotOnlyOnceEveryRankHasPassedIt) {
  for (std::uint64_t id = 1; id <= kRingSize; ++id) {
    runner.next_command().ranks = RankSet::only(0);
    runner.publish();
  }
  pool.finish(0, kAhead);
  runner.drain_all();
  EXPECT_FALSE(ring.is_predecessor_passed());
  pool.die(1, FakePool::killed());  // so it never passes the command
  runner.next_command();
  EXPECT_THAT(ends.log, ElementsAre(StartsWith("loss")));
}

}  // namespace
}  // namespace syncrun::test
