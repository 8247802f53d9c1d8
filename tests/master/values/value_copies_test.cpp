// The copies of a Value, tested without workers: which commands bring them, what these wait for, and which copies are
// valid afterwards.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/heap_log.hpp"
#include "master/values/value_copies.hpp"
#include "master/variables/transfers.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::values;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A Value on three ranks, if not said otherwise. The test does what the workers would do.
class CopiesOfAValue : public testing::Test {
 protected:
  explicit CopiesOfAValue(int ranks = 3, std::vector<protocol::NodePlace> nodes = {})
      : session(std::vector<master::devices::DeviceId>(static_cast<std::size_t>(ranks)), std::move(nodes)) {
    session.commands.leaves_in_flight = true;
    x->value = std::make_unique<master::records::ValueState>(ranks);
    x->value->extents = Extents{4};
  }

  /// A call on one rank that uses its copy, which must be there.
  std::uint64_t call(int rank, Access access) {
    session.calls.next(protocol::RankSet::only(rank), Milliseconds(0));
    depend_on_copy(session.commands, *x, rank, access);
    const std::uint64_t id = session.calls.publish();
    note_use(session.commands, *x, rank, access, id);
    mark_spare_copies(session.commands, *x);
    return id;
  }
  std::uint64_t bring(int rank) {
    EXPECT_FALSE(claim_copy(session.commands, *x, rank));
    warning = bring_copy(session.commands, x, rank);
    return session.calls.last_published();
  }
  /// What a command waits for, in words.
  std::vector<std::string> awaited(std::uint64_t id) {
    std::vector<std::string> words;
    for (const master::calls::EarlierCommand& earlier : session.calls.in_flight(id).dependencies) {
      std::string text = std::to_string(earlier.id);
      if (earlier.rank >= 0) text += " on " + std::to_string(earlier.rank);
      words.push_back(text + (earlier.must_succeed() ? "" : ", a reader"));
    }
    return words;
  }
  std::vector<int> valid() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      if (x->value->copies[static_cast<std::size_t>(rank)].is_valid) ranks.push_back(rank);
    }
    return ranks;
  }
  protocol::VariableEntry& entry() { return *session.pool.segment().at<protocol::VariableEntry>(x->entry); }
  protocol::VariableCopy& copy(int rank) { return entry().copies()[rank]; }
  /// What the worker of the rank does when it runs out of memory in a later command.
  bool drop(int rank) { return protocol::drop_copy(entry(), 3, rank, session.calls.last_published() + 1); }
  /// The value is on rank 0, and nothing is in flight.
  void make_on_rank_0() {
    const std::uint64_t id = call(0, Access::writes);
    session.commands.finish(id);
  }

  /// The value goes to rank 1. That of rank 0 can be dropped when this command, which reads it, is over.
  void expect_spare_after(std::uint64_t reader) {
    const auto move = bring(1);
    call(1, Access::writes);
    session.commands.finish(move);
    mark_spare_copies(session.commands, *x);
    EXPECT_FALSE(protocol::drop_copy(entry(), 3, 0, reader));
    EXPECT_TRUE(protocol::drop_copy(entry(), 3, 0, reader + 1));
  }
  void keep_on_host_only() {
    make_on_rank_0();
    bring_to_host(session.commands, x);
    session.commands.finish(session.calls.last_published());
    forget_copy(session.pool.segment(), *x, 0);
  }

  PlayedSession session;
  std::shared_ptr<master::records::VariableRecord> x = session.variable("x");
  std::string warning;
};

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

TEST_F(CopiesOfAValue, AreSpareUnlessTheyAreTheHome) {
  make_on_rank_0();
  bring(1);
  const auto read = call(1, Access::reads);
  EXPECT_FALSE(protocol::SpareCopy(copy(0)).is_spare());
  EXPECT_TRUE(protocol::SpareCopy(copy(1)).is_spare());
  EXPECT_FALSE(protocol::drop_copy(entry(), 3, 1, read)) << "the call may still read it";
  EXPECT_TRUE(protocol::drop_copy(entry(), 3, 1, read + 1));
  EXPECT_FALSE(claim_copy(session.commands, *x, 1));
  EXPECT_THAT(valid(), ElementsAre(0));
}

TEST_F(CopiesOfAValue, AreNotSpareWhileAnotherRankReadsThem) {
  make_on_rank_0();
  bring(1);
  call(1, Access::writes);  // the move may still read from rank 0
  EXPECT_FALSE(protocol::SpareCopy(copy(0)).is_spare());
}

TEST_F(CopiesOfAValue, ThatHaveTakenThePlaceOfTheHomeStayAlsoIfTheHomeIsClaimedInTheMeantime) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  // The worker of rank 0 has found a successor, and the master claims the home before the worker drops it.
  bool is_claimed = false;
  const bool is_dropped = protocol::SpareCopy(copy(0)).drop(session.calls.last_published() + 1, [&] {
    const bool has_successor = protocol::SpareCopy(copy(1)).appoint();
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
  const bool is_dropped = protocol::SpareCopy(copy(0)).drop(session.calls.last_published() + 1, [&] {
    const bool has_successor = protocol::SpareCopy(copy(1)).appoint();
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
      EXPECT_TRUE(has_copy(session.calls.command(move).as<protocol::MovePayload>().from));
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
      if (protocol::drop_copy(entry(), 3, rank, std::uint64_t{1} << 40U)) {
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
  expect_spare_after(session.calls.last_published());
}

TEST_F(CopiesOfAValue, AreNotSpareBeforeAFetchIsOver) {
  make_on_rank_0();
  master::variables::launch_fetch(session.commands, x, 0);
  expect_spare_after(session.calls.last_published());
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

// ---- copies that do not arrive or are lost

TEST_F(CopiesOfAValue, StayOnTheHostIfTheyDoNotArriveWhereALaterCallWritesThem) {
  keep_on_host_only();
  const auto move = bring(1);
  call(1, Access::writes);
  x->note_unfinished(master::records::Destination::rank(1), move,
                     std::make_exception_ptr(Error(ErrorKind::system, "no memory")));
  EXPECT_THAT(valid(), IsEmpty());
  EXPECT_TRUE(x->value->host.is_valid);
  EXPECT_NE(x->value->host.offset, 0U);
  EXPECT_EQ(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, ThatAreReplacedStayWhereCommandsInFlightUseThem) {
  keep_on_host_only();
  const auto first = bring(1);
  const auto old = x->value->host.offset;
  master::records::HostCopy fresh;
  fresh.is_valid = true;
  fresh.offset = session.heap.allocate(32, os::SharedHeap::Contents::any, "new values");
  fresh.bytes = 32;
  x->value->failure = std::make_exception_ptr(Error(ErrorKind::function, "!"));
  replace_values(session.commands, *x, Extents{8}, fresh);
  EXPECT_THAT(valid(), IsEmpty());
  EXPECT_EQ(x->value->failure, nullptr);
  EXPECT_EQ(x->value->extents[0], 8);
  const auto in_use = session.heap.used_bytes();
  const auto second = bring(2);
  const auto parts = session.calls.command(second).as<protocol::TransferPayload>().parts;
  EXPECT_EQ(session.pool.segment().at<protocol::TransferSlot>(parts)[2].offset, fresh.offset);
  EXPECT_NE(fresh.offset, old);
  session.commands.finish(second);
  EXPECT_EQ(session.heap.used_bytes(), in_use) << "the first move still reads the old values";
  x->note_unfinished(master::records::Destination::rank(1), first,
                     std::make_exception_ptr(Error(ErrorKind::function, "!")));
  EXPECT_EQ(x->value->failure, nullptr) << "it no longer matters";
  session.commands.finish(first);
  EXPECT_LT(session.heap.used_bytes(), in_use);
}

TEST_F(CopiesOfAValue, StayAsTheyWereIfTheirWriterMustFailAndTheProgramKnowsIt) {
  make_on_rank_0();
  session.calls.next(protocol::RankSet::only(0), Milliseconds(0));
  const auto other = session.calls.publish();
  session.calls.next(protocol::RankSet::only(0), Milliseconds(0));
  session.calls.depend_on(other);
  const auto write = session.calls.publish();
  note_use(session.commands, *x, 0, Access::writes, write);
  const auto error = std::make_exception_ptr(Error(ErrorKind::function, "!"));
  session.calls.release(other, session.calls.failures().note(error));
  session.calls.failures().has_surfaced(error);
  EXPECT_THAT(awaited(bring(1)), ElementsAre(std::to_string(write) + " on 0, a reader"));
  EXPECT_THAT(awaited(call(0, Access::reads)), IsEmpty());
}

TEST_F(CopiesOfAValue, OfALostRankAreReplacedByOnesThatWereNotDropped) {
  make_on_rank_0();
  bring(1);
  const auto read = call(1, Access::reads);
  bring(2);
  ASSERT_TRUE(protocol::drop_copy(entry(), 3, 1, read + 1));
  forget_copy(session.pool.segment(), *x, 0);
  EXPECT_EQ(x->value->home, 2);
}

TEST_F(CopiesOfAValue, OfALostRankWereTheLastIfTheHomeHasDroppedIts) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  call(0, Access::reads);
  ASSERT_TRUE(drop(0));
  forget_copy(session.pool.segment(), *x, 1);
  EXPECT_NE(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, ThatWereMadeAndLostAreNotSaidToBeNeverMade) {
  const auto text = [&] { return error_text([&] { check_is_whole(session.commands, *x); }); };
  x->value->made_by = "f";
  make_on_rank_0();
  forget_copy(session.pool.segment(), *x, 0);
  EXPECT_THAT(text(), HasSubstr("value 'x', which 'f' made, no longer exists (its member set() gives it new values): "
                                "its only copy was on rank 0"));
  x->note_unfinished(master::records::Destination::new_value(), 1,
                     std::make_exception_ptr(Error(ErrorKind::function, "!")));
  EXPECT_THAT(text(),
              HasSubstr("there is no value 'x', which 'f' was to make (its member set() gives it new values): !"));
}

// ---- several nodes

/// Rank 0 is on the master's node, ranks 1 and 2 on another one, and rank 3 on a third one.
class CopiesOnNodes : public CopiesOfAValue {
 protected:
  CopiesOnNodes() : CopiesOfAValue(4, {{0, 3, 0, 1}, {1, 3, 1, 2}, {2, 3, 3, 1}}) {
    session.commands.on_await = [this](std::uint64_t id) {
      if (session.calls.is_in_flight(id)) session.commands.finish(id);
    };
    session.pool.control().header().place = {0, 3, 0, 1};
    for (int rank = 0; rank < 4; ++rank) session.pool.control().worker(rank).node = (rank + 1) / 2;
    make_on_rank_0();
  }
  std::uint64_t to_host() {
    bring_to_host(session.commands, x);
    return session.calls.last_published();
  }
  int source_of(std::uint64_t move) const { return session.calls.command(move).as<protocol::MovePayload>().from; }
};

TEST_F(CopiesOnNodes, ComeFromTheSameNodeIfOneIsThere) {
  const auto first = bring(2);
  EXPECT_EQ(source_of(first), 0);
  const auto second = bring(1);
  EXPECT_EQ(source_of(second), 2) << "the value travels to the node once";
  EXPECT_THAT(awaited(second), ElementsAre(std::to_string(first) + " on 2"));
  EXPECT_EQ(source_of(bring(3)), 0);
}

TEST_F(CopiesOnNodes, GoToTheHostWhenNobodyUsesItsMemory) {
  const auto older = to_host();
  bring(3);
  const auto write = call(3, Access::writes);
  const auto newer = to_host();
  EXPECT_FALSE(session.calls.is_in_flight(older)) << "the master has waited for it";
  EXPECT_THAT(awaited(newer), ElementsAre(std::to_string(write)));
}

TEST_F(CopiesOnNodes, OfTheHostTravelByRowsAndAgainAfterAChange) {
  os::HeapLog log;
  session.heap.note_changes(log);
  to_host();
  std::vector<os::HeapChange::Kind> kinds;
  log.for_each(0, [&](const os::HeapChange& change) {
    if (change.offset == x->value->host.offset) kinds.push_back(change.kind);
  });
  EXPECT_THAT(kinds, ElementsAre(os::HeapChange::Kind::reserved, os::HeapChange::Kind::mirrored,
                                 os::HeapChange::Kind::rows_written));
}

}  // namespace
}  // namespace syncrun::test
