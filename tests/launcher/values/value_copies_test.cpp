// The copies of a Value, tested without workers: which commands bring them, what these wait for, and which copies are
// valid afterwards.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <thread>

#include "launcher/variables/transfers.hpp"
#include "tests/launcher/values/copies_of_a_value.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CopiesOfAValue, ComeByACommandOfTheDestinationThatWaitsForTheWriter) {
  const auto write = call(0, Access::writes);
  const auto move = bring(2);
  EXPECT_THAT(awaited(move), ElementsAre(std::to_string(write) + " on 0"));
  const Command& command = session.calls.command(move);
  EXPECT_EQ(command.ranks, RankSet::only(2));
  EXPECT_EQ(command.as<MovePayload>().from, 0);
  EXPECT_EQ(command.as<MovePayload>().variable, x->entry);
  EXPECT_THAT(valid(), ElementsAre(0, 2));
}

TEST_F(CopiesOfAValue, NeedNoWaitForAWriterThatIsOver) {
  make_on_rank_0();
  EXPECT_THAT(awaited(bring(1)), IsEmpty());
}

TEST_F(CopiesOfAValue, AreReadAfterTheirMoveWithoutAWait) {
  make_on_rank_0();
  const auto move = bring(1);
  EXPECT_THAT(awaited(call(1, Access::reads)), ElementsAre(std::to_string(move)));
}

TEST_F(CopiesOfAValue, AreWrittenAfterThoseWhoCopyFromThem) {
  make_on_rank_0();
  const auto first = bring(1);
  const auto second = bring(2);
  const auto write = call(0, Access::writes);
  EXPECT_THAT(awaited(write),
              ElementsAre(std::to_string(first) + " on 1, a reader", std::to_string(second) + " on 2, a reader"));
  EXPECT_THAT(valid(), ElementsAre(0));
  const auto reads = call(0, Access::reads);
  EXPECT_THAT(awaited(reads), ElementsAre(std::to_string(write)));
}

TEST_F(CopiesOfAValue, AreNotWrittenAfterReadersThatAreOver) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  EXPECT_THAT(awaited(call(0, Access::writes)), IsEmpty());
}

TEST_F(CopiesOfAValue, MoveTheHomeToTheWriter) {
  make_on_rank_0();
  bring(1);
  call(1, Access::writes);
  EXPECT_EQ(x->value->home, 1);
  EXPECT_THAT(valid(), ElementsAre(1));
  const auto back = bring(0);
  EXPECT_EQ(session.calls.command(back).as<MovePayload>().from, 1);
}

TEST_F(CopiesOfAValue, AreSpareUnlessTheyAreTheHome) {
  make_on_rank_0();
  const auto move = bring(1);
  const auto read = call(1, Access::reads);
  EXPECT_FALSE(SpareCopy(copy(0)).is_spare());
  EXPECT_TRUE(SpareCopy(copy(1)).is_spare());
  EXPECT_FALSE(drop_copy(entry(), 3, 1, read)) << "the call may still read it";
  EXPECT_TRUE(drop_copy(entry(), 3, 1, read + 1));
  EXPECT_FALSE(claim_copy(session.commands, *x, 1));
  EXPECT_THAT(valid(), ElementsAre(0));
  static_cast<void>(move);
}

TEST_F(CopiesOfAValue, AreNotSpareWhileAnotherRankReadsThem) {
  make_on_rank_0();
  bring(1);
  call(1, Access::writes);  // the move may still read from rank 0
  EXPECT_FALSE(SpareCopy(copy(0)).is_spare());
}

TEST_F(CopiesOfAValue, ThatAreClaimedAreNotDropped) {
  make_on_rank_0();
  bring(1);
  call(1, Access::reads);
  ASSERT_TRUE(claim_copy(session.commands, *x, 1));
  EXPECT_FALSE(drop_copy(entry(), 3, 1, 1000));
}

TEST_F(CopiesOfAValue, AreSpareAtHomeOnceAnotherOneHasArrived) {
  make_on_rank_0();
  const auto move = bring(1);
  call(0, Access::reads);
  EXPECT_FALSE(SpareCopy(copy(0)).is_spare()) << "the other copy is on its way";
  session.commands.finish(move);
  call(0, Access::reads);
  EXPECT_TRUE(SpareCopy(copy(0)).is_spare());
  ASSERT_TRUE(drop(0));
  EXPECT_FALSE(drop(1)) << "it is the only one";
  EXPECT_EQ(session.calls.command(bring(2)).as<MovePayload>().from, 1) << "the new home";
  EXPECT_THAT(valid(), ElementsAre(1, 2));
}

TEST_F(CopiesOfAValue, AreNotDroppedAtHomeIfTheOtherOneWasDropped) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  ASSERT_TRUE(drop(1));
  EXPECT_FALSE(drop(0));
  EXPECT_EQ(session.calls.command(bring(2)).as<MovePayload>().from, 0);
}

TEST_F(CopiesOfAValue, AreNotDroppedAtHomeIfTheOtherOneIsNotValid) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  session.commands.finish(call(0, Access::writes));
  call(0, Access::reads);
  EXPECT_TRUE(SpareCopy(copy(1)).is_spare()) << "it is out of date";
  EXPECT_FALSE(drop(0));
}

TEST_F(CopiesOfAValue, ComeBackToAHomeThatHasDroppedItsCopy) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  ASSERT_TRUE(drop(0));
  EXPECT_EQ(session.calls.command(bring(0)).as<MovePayload>().from, 1);
  EXPECT_EQ(x->value->home, 1);
}

TEST_F(CopiesOfAValue, ThatHaveTakenThePlaceOfTheHomeStayAlsoIfTheHomeIsClaimedInTheMeantime) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  // The worker of rank 0 has found a successor, and the master claims the home before the worker drops it.
  bool is_claimed = false;
  const bool is_dropped = SpareCopy(copy(0)).drop(session.calls.last_published() + 1, [&] {
    const bool has_successor = SpareCopy(copy(1)).appoint();
    is_claimed = claim_copy(session.commands, *x, 0);
    return has_successor;
  });
  EXPECT_TRUE(is_claimed);
  EXPECT_FALSE(is_dropped);
  EXPECT_FALSE(drop(1));
  call(0, Access::reads);
  EXPECT_TRUE(drop(1)) << "the master has marked it again";
}

TEST_F(CopiesOfAValue, StayAtHomeIfTheMasterHasMarkedThemAgainInTheMeantime) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  // The worker of rank 0 has found a successor. The next call makes the successor spare again.
  const bool is_dropped = SpareCopy(copy(0)).drop(session.calls.last_published() + 1, [&] {
    const bool has_successor = SpareCopy(copy(1)).appoint();
    EXPECT_TRUE(claim_copy(session.commands, *x, 1));
    call(1, Access::reads);
    return has_successor;
  });
  EXPECT_FALSE(is_dropped);
  EXPECT_TRUE(drop(1));
  EXPECT_FALSE(drop(0)) << "it is the only one";
}

/// The workers of all ranks drop what they may, at any time, while the test is the master.
class DroppedCopies : public CopiesOfAValue {
 protected:
  DroppedCopies() {
    make_on_rank_0();
    workers_[0].has_copy = true;
    for (int rank = 0; rank < 3; ++rank) threads_.emplace_back([this, rank] { work(rank); });
  }
  ~DroppedCopies() override {
    is_over_ = true;
    for (auto& thread : threads_) thread.join();
  }
  /// A call on the rank uses its copy, which comes from where there is one.
  void use(int rank, Access access) {
    if (!claim_copy(session.commands, *x, rank)) {
      bring_copy(session.commands, x, rank);
      const auto move = session.calls.last_published();
      EXPECT_TRUE(has_copy(session.calls.command(move).as<MovePayload>().from));
      static_cast<void>(has_copy(rank));
      workers_[static_cast<std::size_t>(rank)].has_copy = true;
      session.commands.finish(move);
    }
    EXPECT_TRUE(has_copy(rank));
    session.commands.finish(call(rank, access));
    mark_spare_copies(session.commands, *x);
  }

  std::atomic<int> drops = 0;

 private:
  struct Worker {
    std::atomic<bool> is_dropping = false;
    std::atomic<bool> has_copy = false;
  };
  void work(int rank) {
    Worker& own = workers_[static_cast<std::size_t>(rank)];
    for (; !is_over_; std::this_thread::yield()) {
      own.is_dropping = true;
      if (drop_copy(entry(), 3, rank, std::uint64_t{1} << 40U)) {
        own.has_copy = false;
        ++drops;
      }
      own.is_dropping = false;
    }
  }
  /// The copy is claimed, so it stays as it is once the worker is done with what it does now.
  bool has_copy(int rank) const {
    const Worker& worker = workers_[static_cast<std::size_t>(rank)];
    while (worker.is_dropping) std::this_thread::yield();
    return worker.has_copy;
  }

  std::array<Worker, 3> workers_;
  std::atomic<bool> is_over_ = false;
  std::vector<std::thread> threads_;
};

TEST_F(DroppedCopies, AreNeverTheLast) {
  for (int i = 0; i < 100'000 && drops < 1000 && !HasFailure(); ++i) {
    use(i * 7 % 3, i % 5 == 0 ? Access::writes : Access::reads);
    std::this_thread::yield();
  }
  EXPECT_NE(drops, 0);
}

TEST_F(CopiesOfAValue, AreSpareAtHomeIfTheHostHasThem) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  session.commands.finish(session.calls.last_published());
  call(0, Access::reads);
  ASSERT_TRUE(drop(0));
  EXPECT_EQ(session.calls.command(bring(1)).as<TransferPayload>().direction, TransferDirection::to_variable);
  EXPECT_THAT(valid(), ElementsAre(1));
  EXPECT_EQ(x->value->home, 1);
}

TEST_F(CopiesOfAValue, ThatArePinnedStay) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  x->value->pinned = 1;
  ASSERT_TRUE(claim_copy(session.commands, *x, 1));
  mark_spare_copies(session.commands, *x);
  EXPECT_FALSE(drop(1));
  EXPECT_TRUE(drop(0)) << "it is valid on the rank to which it is pinned";
}

TEST_F(CopiesOfAValue, AreNotSpareBeforeATransferToTheHostIsOver) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  const auto transfer = session.calls.last_published();
  bring(1);
  call(1, Access::writes);
  session.commands.finish(session.calls.last_published() - 1);  // the move
  mark_spare_copies(session.commands, *x);
  EXPECT_FALSE(drop_copy(entry(), 3, 0, transfer)) << "the transfer reads it";
  EXPECT_TRUE(drop_copy(entry(), 3, 0, transfer + 1));
}

TEST_F(CopiesOfAValue, AreNotSpareBeforeAFetchIsOver) {
  make_on_rank_0();
  launch_fetch(session.commands, x, 0);
  const auto fetch = session.calls.last_published();
  bring(1);
  call(1, Access::writes);
  session.commands.finish(session.calls.last_published() - 1);
  mark_spare_copies(session.commands, *x);
  EXPECT_FALSE(drop_copy(entry(), 3, 0, fetch));
  EXPECT_TRUE(drop_copy(entry(), 3, 0, fetch + 1));
}

TEST_F(CopiesOfAValue, ComeFromTheHostIfNoRankHasOne) {
  x->value->host = {.is_valid = true, .offset = 4096, .bytes = 16, .readers = {}};
  const auto move = bring(2);
  EXPECT_EQ(session.calls.command(move).as<TransferPayload>().direction, TransferDirection::to_variable);
  EXPECT_EQ(x->value->home, 2);
  EXPECT_TRUE(x->value->host.is_valid);
  const auto second = bring(0);
  EXPECT_EQ(session.calls.command(second).as<MovePayload>().from, 2);
  x->value->host.offset = 0;
}

TEST_F(CopiesOfAValue, GoToTheHostAfterTheirWriter) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  EXPECT_TRUE(x->value->host.is_valid);
  EXPECT_EQ(session.calls.command(session.calls.last_published()).ranks, RankSet::only(0));
  const auto write = call(0, Access::writes);
  EXPECT_THAT(awaited(write), IsEmpty()) << "the same rank runs both in order";
  EXPECT_FALSE(x->value->host.is_valid);
}

TEST_F(CopiesOfAValue, GoToTheHostOneAfterTheOther) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  const auto older = session.calls.last_published();
  const auto memory = x->value->host.offset;
  bring(1);
  const auto write = call(1, Access::writes);
  bring_to_host(session.commands, x);
  const auto newer = session.calls.last_published();
  EXPECT_EQ(x->value->host.offset, memory) << "both write to it";
  EXPECT_THAT(awaited(newer), ElementsAre(std::to_string(write), std::to_string(older) + " on 0, a reader"));
}

TEST_F(CopiesOfAValue, KeepTheMemoryOfTheHostWhileOneIsOnItsWay) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  const auto transfer = session.calls.last_published();
  bring(1);
  call(1, Access::writes);
  EXPECT_NE(x->value->host.offset, 0U);
  session.commands.finish(transfer);
  call(1, Access::writes);
  EXPECT_EQ(x->value->host.offset, 0U);
}

TEST_F(CopiesOfAValue, ThatGoToAndFroAreWorthOneWarning) {
  make_on_rank_0();
  x->value->made_by = "f";
  int warnings = 0;
  for (int i = 0; i < 60; ++i) {
    const int to = 1 - x->value->home;
    session.commands.finish(bring(to));
    warnings += warning.empty() ? 0 : 1;
    EXPECT_THAT(warning,
                testing::AnyOf(IsEmpty(), HasSubstr("'x', which 'f' made, has moved back and forth between ranks")));
    session.commands.finish(call(to, Access::writes));
  }
  EXPECT_EQ(warnings, 1);
}

TEST_F(CopiesOnBothKinds, ThatGoToAndFroByTheHostAreWorthOneWarning) {
  make_on_rank_0();
  int warnings = 0;
  for (int i = 0; i < 60; ++i) {
    const int to = 1 - x->value->home;
    bring(to);
    warnings += warning.empty() ? 0 : 1;
    EXPECT_THAT(warning, testing::AnyOf(IsEmpty(), HasSubstr("'x' has moved back and forth between ranks")));
    call(to, Access::writes);
    while (!session.calls.is_idle()) session.commands.finish(session.calls.entries().front().id);
  }
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace syncrun::test
