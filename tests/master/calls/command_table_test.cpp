// The commands in flight, tested without processes: where they are, when each is complete, in which order their results
// may be collected, and which of them share a failure.

#include "master/calls/command_table.hpp"

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>

#include "master/records/records.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;

class Calls : public testing::Test {
 protected:
  Calls() { calls.attach(pool.control()); }

  std::uint64_t publish(const protocol::RankSet& ranks) {
    calls.next(ranks, Milliseconds(0)).begin<protocol::UnpinPayload>();
    return calls.publish();
  }
  std::uint64_t publish() { return publish(calls.all_ranks()); }
  std::uint64_t publish_after(std::uint64_t earlier, const protocol::RankSet& ranks) {
    calls.next(ranks, Milliseconds(0));
    calls.depend_on(earlier);
    return calls.publish();
  }

  FakePool pool{3};
  master::calls::CommandTable calls;
};

TEST_F(Calls, CountTheTimeForNoClockWhileTheyAreHeldBack) {
  const auto first = publish(protocol::RankSet::only(0));
  calls.next(protocol::RankSet::only(1), Milliseconds(1000));
  calls.wait_for(first, 0, master::calls::Requirement::success);
  const auto dependent = calls.publish();
  const std::chrono::seconds ten(10);
  EXPECT_EQ(calls.count_waited(ten), std::nullopt);
  EXPECT_EQ(calls.count_waited(ten), std::nullopt);
  pool.finish(0, first);
  EXPECT_EQ(calls.count_waited(ten), std::nullopt) << "it was held back when this wait began";
  EXPECT_EQ(calls.count_waited(ten), dependent);
}

TEST_F(Calls, DependOnlyOnWhatIsInFlightOnARankOfTheirs) {
  const auto first = publish(protocol::RankSet::only(0));
  EXPECT_THAT(calls.in_flight(publish_after(first, protocol::RankSet::only(1))).dependencies, ElementsAre());
  EXPECT_THAT(calls.in_flight(publish_after(first, calls.all_ranks())).dependencies,
              ElementsAre(testing::Field(&master::calls::EarlierCommand::id, first)));
  calls.release(first, nullptr);
  EXPECT_THAT(calls.in_flight(publish_after(first, protocol::RankSet::only(0))).dependencies, ElementsAre());
}

TEST_F(Calls, FindTheFirstFailureAmongTheirRanks) {
  const auto id = publish();
  EXPECT_EQ(calls.first_failed_rank(id), std::nullopt);
  pool.fail(2, id, 7, "late");
  pool.fail(0, id, 0, "of another's failure");
  EXPECT_EQ(calls.first_failed_rank(id), 2);
  pool.fail(1, id, 5, "early");
  EXPECT_EQ(calls.first_failed_rank(id), 1);
  EXPECT_TRUE(calls.has_failed(id));
}

TEST_F(Calls, AreCollectedAfterThoseOnWhichTheyDepend) {
  const auto first = publish();
  const auto second = publish_after(first, protocol::RankSet::only(0));
  pool.finish(0, second);
  EXPECT_TRUE(calls.is_complete(second));
  EXPECT_FALSE(calls.is_collectable(second)) << "the first may still fail on another rank";
  EXPECT_EQ(calls.first_collectable(), std::nullopt);
  pool.finish_all(first);
  pool.finish(0, second);
  EXPECT_TRUE(calls.is_collectable(second));
  EXPECT_EQ(calls.first_collectable(), first);
}

TEST_F(Calls, ThatWroteAVariableAreRememberedUntilAnotherOverwritesAllOfIt) {
  master::records::WriteLog writes;
  const auto on_one = publish(protocol::RankSet::only(1));
  calls.note_write(writes, on_one);
  const auto on_two = publish(protocol::RankSet::only(2));
  calls.note_write(writes, on_two);
  EXPECT_THAT(writes.calls, ElementsAre(on_one, on_two));
  const auto on_all = publish();
  calls.note_write(writes, on_all);
  EXPECT_THAT(writes.calls, ElementsAre(on_all));
}

TEST_F(Calls, CannotBeCollectedIfASurvivorHasGivenThemUp) {
  protocol::RankSet one_and_two = protocol::RankSet::only(1);
  one_and_two.add(2);
  const auto lost = publish(one_and_two);
  const auto after = publish_after(lost, protocol::RankSet::only(2));
  const auto failed = publish(protocol::RankSet::only(0));
  const auto after_failed = publish_after(failed, protocol::RankSet::only(0));
  pool.fail(2, lost, 0, "a worker was lost");
  pool.finish(1, lost);
  pool.finish(2, after);
  pool.fail(0, failed, 1, "a failure of its own");
  pool.fail(0, after_failed, 0, "a call on which this one depends failed");
  pool.finish(0, after_failed);
  EXPECT_TRUE(calls.is_complete(lost));
  EXPECT_FALSE(calls.is_collectable(lost));
  EXPECT_FALSE(calls.is_collectable(after)) << "it depends on that call";
  EXPECT_TRUE(calls.is_collectable(failed));
  EXPECT_TRUE(calls.is_collectable(after_failed)) << "it has failed with a call that was not given up";
}

TEST_F(Calls, RememberNoEndlessNumberOfFailures) {
  for (int i = 0; i < 1000; ++i)
    calls.failures().note_unfetched(std::make_exception_ptr(std::runtime_error("again")), nullptr);
  int taken = 0;
  while (calls.failures().take_dropped()) ++taken;
  EXPECT_EQ(taken, 64);
}

TEST_F(Calls, HaveANameAndSayWhatTheyMayHaveHalfWritten) {
  const auto first = publish();
  calls.in_flight(first).what = "all_reduce";
  calls.in_flight(first).subject = "weights";
  calls.in_flight(first).writes = {"weights"};
  const auto second = publish_after(first, calls.all_ranks());
  calls.in_flight(second).what = "unpin";
  calls.in_flight(second).writes = {"bias", "weights"};
  calls.in_flight(publish()).writes = {"of another call"};
  EXPECT_EQ(calls.name_of(first), "all_reduce of weights");
  EXPECT_EQ(calls.name_of(second), "unpin");
  EXPECT_THAT(calls.half_written_by(first), ElementsAre("weights", "bias"));
  EXPECT_THAT(calls.half_written_by(second), ElementsAre("bias", "weights"));
  EXPECT_THAT(calls.half_written(), ElementsAre("weights", "bias", "of another call"));
}

TEST_F(Calls, ThatAllRanksHaveVotedForMayHaveStoredTheirUpdatesBeforeALoss) {
  static constexpr std::array<ArgumentType, 1> kArguments{{{ArgumentKind::update, DType::float32, {}, 1, 0}}};
  const auto function = std::make_shared<master::records::FunctionRecord>();
  function->signature.arguments = kArguments;
  const auto params = std::make_shared<master::records::VariableRecord>();
  params->name = "params";
  const auto id = publish();
  master::calls::InFlight& call = calls.in_flight(id);
  call.function = function;
  call.arguments[0].variable = params;
  call.arguments_count = 1;
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(calls.half_written(), testing::IsEmpty()) << "rank " << rank << " has not voted";
    pool.control().outbox(calls.command(id), rank).cast = protocol::Vote::ok;
    pool.control().worker(rank).vote.store(protocol::vote_word(id, protocol::Vote::ok));
  }
  EXPECT_THAT(calls.half_written(), ElementsAre("params"));
  pool.control().outbox(calls.command(id), 1).cast = protocol::Vote::failed;
  EXPECT_THAT(calls.half_written(), testing::IsEmpty()) << "no rank has stored them";
}

/// A train step: the body writes the first argument, and only the update writes the second one.
TEST_F(Calls, ThatFailBeforeTheUpdateOfAStepLeaveWhatItWrites) {
  static constexpr ArgumentType kLocal{ArgumentKind::local, DType::float32, {}, 1, 0};
  static constexpr std::array<ArgumentType, 2> kArguments{kLocal, kLocal};
  const auto function = std::make_shared<master::records::FunctionRecord>();
  function->signature.arguments = kArguments;
  function->written_by_update = 0b10;
  const auto id = publish();
  master::calls::InFlight& call = calls.in_flight(id);
  call.function = function;
  call.arguments_count = 2;
  for (const std::size_t i : {0, 1}) {
    const auto variable = std::make_shared<master::records::VariableRecord>();
    variable->name = i == 0 ? "gradient" : "params";
    call.arguments[i].variable = variable;
  }
  const auto outbox = [&](int rank) -> protocol::Outbox& { return pool.control().outbox(calls.command(id), rank); };
  pool.fail(0, id, 1, "the loss is nan");
  for (const int rank : {1, 2}) pool.fail(rank, id, 0, "another rank has failed");
  for (const int rank : {0, 1}) pool.finish(rank, id);
  EXPECT_THAT(calls.half_written_by(id), ElementsAre("gradient", "params")) << "rank 2 still runs";
  pool.finish(2, id);
  EXPECT_THAT(calls.half_written_by(id), ElementsAre("gradient"));
  EXPECT_THAT(calls.half_written(), ElementsAre("gradient", "params")) << "after a loss, not all ranks report";
  outbox(2).may_have_updated = true;
  EXPECT_THAT(calls.half_written_by(id), ElementsAre("gradient", "params")) << "it has failed later";
  outbox(2).may_have_updated = false;
  outbox(1).vote = protocol::Vote::ok;
  EXPECT_THAT(calls.half_written_by(id), ElementsAre("gradient", "params")) << "it has updated and succeeded";
}

}  // namespace
}  // namespace syncrun::test
