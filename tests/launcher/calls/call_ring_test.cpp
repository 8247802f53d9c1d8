// The commands in flight, tested without processes: when each is complete, when its slot is free, and which commands
// share a failure.

#include "launcher/calls/call_ring.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;

class Ring : public testing::Test {
 protected:
  Ring() { ring.attach(pool.control()); }

  std::uint64_t publish(const RankSet& ranks, CallResult* result = nullptr) {
    CommandHead& command = ring.next(Milliseconds(0));
    command.ranks = ranks;
    ring.next_in_flight().result = result;
    return ring.publish();
  }
  std::uint64_t publish() { return publish(ring.all_ranks()); }
  static std::exception_ptr failure(const char* text) { return std::make_exception_ptr(std::runtime_error(text)); }

  FakePool pool{3};
  CallRing ring;
};

TEST_F(Ring, NumbersCommandsAndShowsThemToTheWorkers) {
  EXPECT_TRUE(ring.is_idle());
  CommandHead& command = ring.next(Milliseconds(250));
  EXPECT_EQ(command.id, 1U);
  EXPECT_EQ(command.timeout_ms, 250);
  EXPECT_EQ(command.ranks, RankSet::all(3));
  EXPECT_EQ(pool.control().header().published.load(), 0U) << "before it is published";
  EXPECT_EQ(pool.control().command(1).id, 0U) << "it is a draft";
  EXPECT_EQ(ring.publish(), 1U);
  EXPECT_EQ(pool.control().header().published.load(), 1U);
  EXPECT_EQ(pool.control().command(1).id, 1U);
  EXPECT_EQ(pool.control().command(1).timeout_ms, 250);
  EXPECT_EQ(publish(), 2U);
  EXPECT_EQ(ring.oldest(), 1U);
  EXPECT_EQ(ring.last_published(), 2U);
  EXPECT_TRUE(ring.is_in_flight(2));
  EXPECT_FALSE(ring.is_in_flight(3));
}

TEST_F(Ring, HasACommandCompleteOnceItsOwnRanksAreDone) {
  const auto id = publish(RankSet::only(1));
  EXPECT_FALSE(ring.is_complete(id));
  pool.finish(0, id);
  EXPECT_FALSE(ring.is_complete(id)) << "another rank has passed it";
  pool.finish(1, id);
  EXPECT_TRUE(ring.is_complete(id)) << "whatever the others do";

  auto completion = ring.completion_of(publish());
  EXPECT_FALSE(completion());
  pool.finish(0, 2);
  pool.finish(2, 2);
  EXPECT_FALSE(completion());
  pool.finish(1, 2);
  EXPECT_TRUE(completion());
}

TEST_F(Ring, FreesASlotOnceEveryRankHasPassedIt) {
  for (std::uint64_t i = 0; i < kRingSize; ++i) {
    EXPECT_TRUE(ring.is_predecessor_drained());
    EXPECT_TRUE(ring.is_predecessor_passed());
    publish(RankSet::only(1));
  }
  EXPECT_FALSE(ring.is_predecessor_drained()) << "the ring is full";
  pool.finish(1, kRingSize);
  for (std::uint64_t id = 1; id <= kRingSize; ++id) {
    ring.retire(id);
    ring.release(id, nullptr);
  }
  EXPECT_TRUE(ring.is_predecessor_drained());
  EXPECT_FALSE(ring.is_predecessor_passed()) << "ranks 0 and 2 may still look at it";
  EXPECT_FALSE(ring.have_all_passed(ring.predecessor()));
  pool.finish_all(1);
  pool.finish(1, kRingSize);
  EXPECT_TRUE(ring.have_all_passed(ring.predecessor()));
  EXPECT_FALSE(ring.have_all_passed(ring.predecessor() + 1));
  ring.note_passed(ring.predecessor());
  EXPECT_TRUE(ring.is_predecessor_passed());
}

TEST_F(Ring, KnowsThatAllHavePassedWhatAllHaveRun) {
  for (std::uint64_t id = 1; id <= kRingSize; ++id) {
    publish(id == 3 ? ring.all_ranks() : RankSet::only(0));
    ring.retire(id);
  }
  for (int passed = 0; passed < 3; ++passed) {
    EXPECT_TRUE(ring.is_predecessor_passed()) << "the third was for all";
    publish(RankSet::only(0));
  }
  EXPECT_FALSE(ring.is_predecessor_passed());
}

TEST_F(Ring, FindsTheFirstFailureAmongTheRanksOfACommand) {
  const auto id = publish();
  EXPECT_EQ(ring.first_failed_rank(id), std::nullopt);
  pool.fail(2, id, 7, "late");
  pool.fail(0, id, 0, "of another's failure");
  EXPECT_EQ(ring.first_failed_rank(id), 2);
  pool.fail(1, id, 5, "early");
  EXPECT_EQ(ring.first_failed_rank(id), 1);

  const auto alone = publish(RankSet::only(0));
  pool.fail(2, alone, 1, "of an older command in this slot");
  EXPECT_EQ(ring.first_failed_rank(alone), std::nullopt);
}

TEST_F(Ring, SharesAFailureWithWhatWasPublishedByThenAndNoMore) {
  const auto first = publish();
  const auto second = publish();
  pool.fail(0, first, 1, "failed");
  EXPECT_TRUE(ring.has_failed(first));
  EXPECT_FALSE(ring.has_failed(second));
  ring.retire(first);
  ring.acknowledge();
  EXPECT_EQ(pool.control().header().acknowledged.load(), second);
  EXPECT_TRUE(ring.is_consequence(second));
  EXPECT_TRUE(ring.has_failed(second));
  EXPECT_FALSE(ring.has_failed(publish()));
}

TEST_F(Ring, RemembersTheFirstFailureThatADroppedFutureHad) {
  const auto first = failure("first");
  for (const auto& error : {first, failure("second")}) {
    const auto id = publish();
    ring.in_flight(id).kept_result = std::make_shared<CallResult>();
    ring.retire(id);
    ring.release(id, error);
  }
  EXPECT_EQ(ring.dropped_failure(), first);
  ring.has_surfaced(failure("another"));
  EXPECT_EQ(ring.dropped_failure(), first);
  ring.has_surfaced(first);
  EXPECT_EQ(ring.dropped_failure(), nullptr);
}

TEST_F(Ring, DoesNotRememberTheFailureOfAFutureThatIsHeld) {
  const auto held = std::make_shared<CallResult>();
  const auto id = publish();
  ring.in_flight(id).kept_result = held;
  ring.retire(id);
  ring.release(id, failure("seen"));
  EXPECT_EQ(ring.dropped_failure(), nullptr);
  EXPECT_NE(ring.last_failure(), nullptr);
  EXPECT_EQ(pool.control().header().consumed.load(), id);
  EXPECT_EQ(held.use_count(), 1) << "it keeps nothing alive any more";
}

TEST_F(Ring, TakesOutWhatIsInFlight) {
  CallResult results[2];
  std::vector<std::uint64_t> freed;
  publish(ring.all_ranks(), &results[0]);
  ring.in_flight(publish(ring.all_ranks(), &results[1])).temporaries = {64, 128};
  const auto unfinished = ring.take_unfinished([&](std::uint64_t offset) { freed.push_back(offset); });
  ASSERT_EQ(unfinished.size(), 2U);
  EXPECT_EQ(unfinished[1].result, &results[1]);
  EXPECT_TRUE(results[0].finished && results[1].finished);
  EXPECT_THAT(freed, ElementsAre(64, 128));
  EXPECT_TRUE(ring.is_idle());
  EXPECT_TRUE(ring.is_consequence(2));
  EXPECT_EQ(pool.control().header().consumed.load(), 2U);
}

TEST_F(Ring, FailsAllThatIsInFlight) {
  CallResult result;
  publish(ring.all_ranks(), &result);
  const auto cause = failure("over");
  ring.fail_all(cause);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.error, cause);
}

TEST_F(Ring, NamesCommandsAndWhatTheyMayHaveHalfWritten) {
  const auto first = publish();
  ring.in_flight(first).what = "all_reduce";
  ring.in_flight(first).subject = "weights";
  ring.in_flight(first).writes = {"weights"};
  const auto second = publish();
  ring.in_flight(second).what = "unpin";
  ring.in_flight(second).writes = {"bias", "weights"};
  EXPECT_EQ(ring.name_of(first), "all_reduce of weights");
  EXPECT_EQ(ring.name_of(second), "unpin");
  EXPECT_THAT(ring.half_written_since(first), ElementsAre("weights", "bias"));
  EXPECT_THAT(ring.half_written_since(second), ElementsAre("bias", "weights"));
}

TEST_F(Ring, CountsTheWaitForTheOldestCallOfEachRank) {
  CommandHead& command = ring.next(Milliseconds(100));
  command.ranks = RankSet::only(1);
  const auto id = ring.publish();
  EXPECT_EQ(ring.count_waited(std::chrono::milliseconds(99)), std::nullopt);
  EXPECT_EQ(ring.count_waited(std::chrono::milliseconds(1)), id);
  pool.finish(1, id);
  EXPECT_EQ(ring.count_waited(std::chrono::milliseconds(100)), std::nullopt) << "it is complete";
}

}  // namespace
}  // namespace syncrun::test
