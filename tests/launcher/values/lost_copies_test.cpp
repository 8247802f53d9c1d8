// The copies of a Value that do not arrive, or are lost, and what becomes of the Value. Without workers.

#include <gmock/gmock.h>

#include "tests/launcher/values/copies_of_a_value.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CopiesOfAValue, ThatDoNotArriveAreNotValid) {
  make_on_rank_0();
  const auto move = bring(1);
  x->note_unfinished(Destination::rank(1), move, nullptr);
  EXPECT_THAT(valid(), ElementsAre(0));
  EXPECT_EQ(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, ThatDoNotArriveAnywhereMeanThatThereIsNoValue) {
  x->value->host = {.is_valid = true, .offset = 4096, .bytes = 16, .readers = {}};
  const auto move = bring(1);
  x->value->host = {};
  x->note_unfinished(Destination::rank(1), move, std::make_exception_ptr(Error(ErrorKind::system, "no memory")));
  try {
    check_is_whole(session.commands, *x);
    FAIL() << "it is usable";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::system);
    EXPECT_THAT(error.what(),
                HasSubstr("value 'x' no longer exists (its member set() gives it new values): no memory"));
  }
}

TEST_F(CopiesOfAValue, ThatDoNotArriveAreNotValidAlsoIfALaterCallWritesThem) {
  make_on_rank_0();
  const auto move = bring(1);
  call(1, Access::writes);
  x->note_unfinished(Destination::rank(1), move, std::make_exception_ptr(Error(ErrorKind::system, "no memory")));
  EXPECT_THAT(valid(), ElementsAre(0)) << "the write does not run";
  EXPECT_EQ(x->value->home, 0);
  EXPECT_EQ(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, StayWhereTheyWereIfAWriterFailsWhileTheyGoBackAndForth) {
  const auto write = call(0, Access::writes);
  std::uint64_t earlier = 0;
  for (const int rank : {1, 0, 2, 1}) {
    earlier = bring(rank);
    call(rank, Access::writes);
  }
  session.calls.release(write, session.calls.failures().note(std::make_exception_ptr(Error(ErrorKind::function, "!"))));
  ASSERT_TRUE(session.calls.is_in_flight(earlier));
  EXPECT_THAT(valid(), ElementsAre(0));
  EXPECT_EQ(x->value->failure, nullptr);
  EXPECT_THAT(awaited(call(0, Access::reads)), IsEmpty()) << "the writes that were launched do not run";
}

TEST_F(CopiesOfAValue, StayOnTheRankFromWhichTheyDoNotArrive) {
  make_on_rank_0();
  const auto first = bring(1);
  const auto write = call(1, Access::writes);
  const auto second = bring(2);
  call(2, Access::writes);
  session.commands.finish(first);
  session.commands.finish(write);
  x->note_unfinished(Destination::rank(2), second, std::make_exception_ptr(Error(ErrorKind::system, "no memory")));
  EXPECT_THAT(valid(), ElementsAre(1)) << "with what the first write has left";
}

TEST_F(CopiesOfAValue, StayOnTheHostIfTheyDoNotArriveWhereALaterCallWritesThem) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  session.commands.finish(session.calls.last_published());
  forget_copy(session.pool.segment(), *x, 0);
  const auto move = bring(1);
  call(1, Access::writes);
  x->note_unfinished(Destination::rank(1), move, std::make_exception_ptr(Error(ErrorKind::system, "no memory")));
  EXPECT_THAT(valid(), IsEmpty());
  EXPECT_TRUE(x->value->host.is_valid);
  EXPECT_NE(x->value->host.offset, 0U);
  EXPECT_EQ(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, ThatAreReplacedStayWhereCommandsInFlightUseThem) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  session.commands.finish(session.calls.last_published());
  forget_copy(session.pool.segment(), *x, 0);
  const auto first = bring(1);
  const auto old = x->value->host.offset;
  HostCopy fresh;
  fresh.is_valid = true;
  fresh.offset = session.heap.allocate(32, SharedHeap::Contents::any, "new values");
  fresh.bytes = 32;
  x->value->failure = std::make_exception_ptr(Error(ErrorKind::function, "!"));
  replace_values(session.commands, *x, Extents{8}, fresh);
  EXPECT_THAT(valid(), IsEmpty());
  EXPECT_EQ(x->value->failure, nullptr);
  EXPECT_EQ(x->value->extents[0], 8);
  const auto in_use = session.heap.used_bytes();
  const auto second = bring(2);
  const auto parts = session.calls.command(second).as<TransferPayload>().parts;
  EXPECT_EQ(session.pool.segment().at<TransferSlot>(parts)[2].offset, fresh.offset);
  EXPECT_NE(fresh.offset, old);
  session.commands.finish(second);
  EXPECT_EQ(session.heap.used_bytes(), in_use) << "the first move still reads the old values";
  x->note_unfinished(Destination::rank(1), first, std::make_exception_ptr(Error(ErrorKind::function, "!")));
  EXPECT_EQ(x->value->failure, nullptr) << "it no longer matters";
  session.commands.finish(first);
  EXPECT_LT(session.heap.used_bytes(), in_use);
}

TEST_F(CopiesOfAValue, ThatDoNotArriveFromTheHostLeaveItThere) {
  x->value->host = {.is_valid = true, .offset = 4096, .bytes = 16, .readers = {}};
  const auto move = bring(1);
  x->note_unfinished(Destination::rank(1), move, nullptr);
  EXPECT_EQ(x->value->home, ValueState::kHost);
  EXPECT_EQ(session.calls.command(bring(1)).as<TransferPayload>().direction, TransferDirection::to_variable);
  x->value->host.offset = 0;
}

TEST_F(CopiesOfAValue, ThatDoNotArriveOnTheHostAreNotValid) {
  make_on_rank_0();
  bring_to_host(session.commands, x);
  const auto transfer = session.calls.last_published();
  const InFlight& in_flight = session.calls.in_flight(transfer);
  CallTable::for_each_value(in_flight, [&](const std::shared_ptr<VariableRecord>& value, Destination to) {
    value->note_unfinished(to, transfer, nullptr);
  });
  EXPECT_FALSE(x->value->host.is_valid);
  EXPECT_EQ(x->value->failure, nullptr);
}

TEST_F(CopiesOfAValue, ThatMustFailAreNotValidBeforeTheirMoveIsOver) {
  const auto write = call(0, Access::writes);
  const auto move = bring(1);
  session.calls.release(write, session.calls.failures().note(std::make_exception_ptr(Error(ErrorKind::function, "!"))));
  ASSERT_TRUE(session.calls.is_in_flight(move));
  EXPECT_THAT(valid(), ElementsAre(0));
}

TEST_F(CopiesOfAValue, StayAsTheyWereIfTheirWriterMustFailAndTheProgramKnowsIt) {
  make_on_rank_0();
  session.calls.next(RankSet::only(0), Milliseconds(0));
  const auto other = session.calls.publish();
  session.calls.next(RankSet::only(0), Milliseconds(0));
  session.calls.depend_on(other);
  const auto write = session.calls.publish();
  note_use(session.commands, *x, 0, Access::writes, write);
  const auto error = std::make_exception_ptr(Error(ErrorKind::function, "!"));
  session.calls.release(other, session.calls.failures().note(error));
  session.calls.failures().has_surfaced(error);
  EXPECT_THAT(awaited(bring(1)), ElementsAre(std::to_string(write) + " on 0, a reader"));
  EXPECT_THAT(awaited(call(0, Access::reads)), IsEmpty());
}

TEST_F(CopiesOfAValue, ComeFromTheHomeAsItIsAfterAWait) {
  make_on_rank_0();
  session.commands.finish(bring(1));
  for (std::size_t i = 0; i < kInboxSize; ++i) {
    session.calls.next(RankSet::only(2), Milliseconds(0));
    session.calls.publish();
  }
  session.commands.on_full_inbox = [&](std::uint64_t oldest) {
    session.commands.finish(oldest);
    forget_copy(session.pool.segment(), *x, 0);
  };
  EXPECT_EQ(session.calls.command(bring(2)).as<MovePayload>().from, 1);
}

TEST_F(CopiesOfAValue, DoNotComeIfTheValueWasLostDuringAWait) {
  make_on_rank_0();
  for (std::size_t i = 0; i < kInboxSize; ++i) {
    session.calls.next(RankSet::only(2), Milliseconds(0));
    session.calls.publish();
  }
  const auto last = session.calls.last_published();
  session.commands.on_full_inbox = [&](std::uint64_t oldest) {
    session.commands.finish(oldest);
    forget_copy(session.pool.segment(), *x, 0);
  };
  EXPECT_THROW(bring(2), Error);
  EXPECT_EQ(session.calls.last_published(), last) << "a move was published";
}

TEST_F(CopiesOfAValue, OfALostRankAreForgotten) {
  make_on_rank_0();
  bring(2);
  forget_copy(session.pool.segment(), *x, 0);
  EXPECT_EQ(x->value->home, 2);
  EXPECT_EQ(x->value->failure, nullptr);
  forget_copy(session.pool.segment(), *x, 2);
  ASSERT_NE(x->value->failure, nullptr);
  try {
    check_is_whole(session.commands, *x);
    FAIL() << "it is usable";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
    EXPECT_THAT(error.what(), HasSubstr("its only copy was on rank 2"));
  }
}

TEST_F(CopiesOfAValue, OfALostRankAreReplacedByOnesThatWereNotDropped) {
  make_on_rank_0();
  bring(1);
  const auto read = call(1, Access::reads);
  bring(2);
  ASSERT_TRUE(drop_copy(entry(), 3, 1, read + 1));
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
  const auto text = [&] {
    try {
      check_is_whole(session.commands, *x);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  x->value->made_by = "f";
  make_on_rank_0();
  forget_copy(session.pool.segment(), *x, 0);
  EXPECT_THAT(text(), HasSubstr("value 'x', which 'f' made, no longer exists (its member set() gives it new values): "
                                "its only copy was on rank 0"));
  x->note_unfinished(Destination::new_value(), 1, std::make_exception_ptr(Error(ErrorKind::function, "!")));
  EXPECT_THAT(text(),
              HasSubstr("there is no value 'x', which 'f' was to make (its member set() gives it new values): !"));
}

TEST_F(CopiesOnBothKinds, StayOnTheGpuIfTheyDoNotReachTheHost) {
  const auto write = call(0, Access::writes);
  bring(1);  // by the way of the host
  call(1, Access::writes);
  session.calls.release(write, session.calls.failures().note(std::make_exception_ptr(Error(ErrorKind::function, "!"))));
  EXPECT_THAT(valid(), ElementsAre(0));
  EXPECT_FALSE(x->value->host.is_valid);
  EXPECT_FALSE(SpareCopy(copy(0)).is_spare()) << "it is the only one";
  EXPECT_EQ(x->value->failure, nullptr);
}

}  // namespace
}  // namespace syncrun::test
