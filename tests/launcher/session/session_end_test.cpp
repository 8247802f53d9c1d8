// The end of a session, tested without processes: the messages about a loss, and how workers end when the session
// closes.

#include "launcher/session/session_end.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class End : public testing::Test {
 protected:
  End() { calls.attach(pool.control()); }
  std::uint64_t publish(const char* what) {
    calls.next(calls.all_ranks(), Milliseconds(0));
    calls.next_in_flight().what = what;
    return calls.publish();
  }
  std::optional<Error> close(Milliseconds grace) {
    return await_ends_at_close(pool, report, calls.last_published(), grace);
  }

  FakePool pool{3};
  CallTable calls;
  LossReport report{pool, calls, {"cpu0", "cpu1", "cpu2"}};
};

TEST_F(End, OfALossSaysWhoWhereAndWhenPeersStoppedWaiting) {
  const auto id = publish("step");
  pool.set_phase(1, id, Phase::function);
  pool.control().worker(2).released_ns.store(7);
  pool.die(1, FakePool::killed());
  const SeenLoss loss = describe_seen_loss(pool, report);
  EXPECT_EQ(loss.failure.rank, 1);
  EXPECT_THAT(loss.where, HasSubstr("in call 'step'"));
  EXPECT_EQ(loss.wait_status, SIGKILL);
  ASSERT_EQ(loss.failure.peers_released.size(), 3U);
  EXPECT_EQ(loss.failure.peers_released[2].time_since_epoch(), std::chrono::nanoseconds(7));
}

TEST_F(End, WaitsForPeersThatWaitForEachOtherButNotForEver) {
  const auto id = publish("step");
  pool.set_phase(0, id, Phase::collective);
  pool.die(1, FakePool::killed());
  const auto begin = Clock::now();
  static_cast<void>(describe_seen_loss(pool, report));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(100));
}

TEST_F(End, DoesNotWaitForPeersOnOtherNodes) {
  const auto id = publish("step");
  pool.control().header().place = {.node = 0, .nodes = 2, .first_rank = 0, .local_size = 2};
  pool.set_phase(2, id, Phase::collective);
  pool.die(1, FakePool::killed());
  const auto begin = Clock::now();
  static_cast<void>(describe_seen_loss(pool, report));
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(100));
}

TEST_F(End, IsSilentAboutWorkersThatEndWell) {
  for (int rank = 0; rank < 3; ++rank) pool.end_by_itself(rank);
  EXPECT_FALSE(close(Milliseconds(1000)));
  EXPECT_THAT(pool.log, Not(Contains("kill all")));
}

TEST_F(End, NamesTheFirstThatDidNotEndWell) {
  for (int rank = 0; rank < 3; ++rank) pool.end_by_itself(rank, rank == 0 ? 0 : 3 << 8);
  const auto error = close(Milliseconds(1000));
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("rank 1 (cpu1, pid 101) was lost while closing (phase close)"));
  EXPECT_EQ(error->native_code(), 3 << 8);
  EXPECT_EQ(error->failure().phase, "close");
}

TEST_F(End, KillsThoseThatDoNotEndInTimeAndKeepsTheirStacks) {
  pool.end_by_itself(0);
  pool.end_by_itself(2);
  const auto error = close(Milliseconds(10));
  ASSERT_TRUE(error);
  EXPECT_THAT(pool.log, testing::IsSupersetOf({"take stacks", "kill all"}));
  EXPECT_EQ(error->failure().rank, 1);
  EXPECT_THAT(error->failure().cause, HasSubstr("killed"));
  EXPECT_EQ(error->failure().ranks.size(), 3U);
}

TEST_F(End, KillsAtOnceWithoutAGracePeriod) {
  const auto error = close(Milliseconds(0));
  ASSERT_TRUE(error);
  EXPECT_THAT(pool.log, Contains("kill all"));
}

TEST_F(End, SaysThatNothingIsKnownOfTheWorkersRatherThanBlamingOne) {
  for (int rank = 0; rank < 3; ++rank) pool.end_by_itself(rank, SIGKILL);
  pool.watch_error = Error(ErrorKind::system, "the descriptors were closed");
  const auto error = close(Milliseconds(10));
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(), "the descriptors were closed");
}

}  // namespace
}  // namespace syncrun::test
