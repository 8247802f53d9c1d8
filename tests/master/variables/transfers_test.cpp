// Transfers of values to and from the copies of shared variables, tested without a session: which values are
// transferred, and what the records say afterwards.

#include "master/variables/transfers.hpp"

#include <gmock/gmock.h>

#include <type_traits>
#include <utility>

#include "master/records/registry.hpp"
#include "master/session/restored_values.hpp"
#include "syncrun/updates.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::variables;
using namespace detail::master::records;
using testing::ElementsAre;

class Copies : public testing::Test {
 protected:
  std::shared_ptr<VariableRecord> make(const std::string& name) {
    auto variable = session.variable(name);
    registry.add(variable);
    return variable;
  }
  void set(VariableRecord& variable, int rank, const std::vector<float>& values) {
    Sources sources(session.commands);
    const Source source = sources.add(variable, values.data(), Extents{static_cast<std::int64_t>(values.size())});
    place_copy(session.commands, variable, rank, source.offset, source.extents);
  }
  void set_all(VariableRecord& variable, const std::vector<float>& values) {
    for (int rank = 0; rank < session.commands.world_size(); ++rank) set(variable, rank, values);
    variable.is_replicated = true;
  }
  const CopyFacts& facts() { return weights->copies(session.commands.settled()); }
  std::vector<float>& copy(const VariableRecord& variable, int rank) {
    return session.commands.copy(variable.entry, rank);
  }
  protocol::VariableEntry& entry_of(const VariableRecord& variable) {
    return *session.pool.segment().at<protocol::VariableEntry>(variable.entry);
  }
  /// Replaces the copies of these ranks as after new workers have got the ranks.
  Failure lose(const std::vector<int>& ranks, const std::vector<std::string>& half_written = {}) {
    for (const int rank : ranks) {
      master::session::forget_copies({session.pool.segment(), session.heap}, registry, rank);
      registry.for_each_entry([&](std::uint64_t entry) { session.commands.copy(entry, rank).clear(); });
    }
    Failure failure;
    failure.undefined = half_written;
    master::session::pass_on(session.commands, registry, ranks, failure);
    return failure;
  }
  Failure lose_rank_1() { return lose({1}); }

  explicit Copies(const std::vector<master::devices::DeviceId>& devices = {{}, {}, {}}) : session(devices) {}

  PlayedSession session;
  Registry registry;
  std::shared_ptr<VariableRecord> weights = make("weights");
};

TEST_F(Copies, ThatARankGaveUpInAFailureAreNoLongerAssignedUnlessTheSessionIsOver) {
  for (const bool is_over : {false, true}) {
    session.commands.on_command = nullptr;
    set(*weights, 0, {1, 2});
    session.commands.on_command = [&](const protocol::Command&) {
      entry_of(*weights).copies()[0].capacity_bytes = 0;
      session.commands.is_session_open = !is_over;
      throw Error(ErrorKind::system, "out of memory");
    };
    EXPECT_THROW(set(*weights, 0, {1, 2, 3}), Error);
    EXPECT_EQ(facts().assigned.has(0), is_over) << "they are not read any more";
  }
}

TEST_F(Copies, GoToAnotherRankWithoutAWaitIfTheirShapeStays) {
  set_all(*weights, {1, 2});
  session.commands.log.clear();
  session.commands.leaves_in_flight = true;
  copy_variable(session.commands, weights, 0, 2);
  EXPECT_THAT(session.commands.log, ElementsAre("copy of weights"));
}

TEST_F(Copies, ThatGetAnotherShapeWaitForTheCallsThatReadIt) {
  set(*weights, 0, {1, 2});
  set(*weights, 2, {1, 2, 3});
  session.commands.log.clear();
  session.commands.leaves_in_flight = true;
  copy_variable(session.commands, weights, 0, 2);
  EXPECT_THAT(session.commands.log, ElementsAre("await users", "copy of weights"));
  EXPECT_EQ(facts().extents[2][0], 2);
}

TEST_F(Copies, ThatDifferedAtTheFirstLossArePassedOnAfterTheSecond) {
  set_all(*weights, {1, 2});
  copy(*weights, 2) = {1, 7};
  lose({1});
  const Failure failure = lose({1});
  EXPECT_THAT(copy(*weights, 1), ElementsAre(1, 2));
  EXPECT_THAT(failure.undefined, ElementsAre("weights"));
  EXPECT_TRUE(facts().assigned.has(1));
}

class CopiesOnFourRanks : public Copies {
 protected:
  CopiesOnFourRanks() : Copies({{}, {}, {}, {}}) {}
};

TEST_F(CopiesOnFourRanks, ThatDifferArePassedOnToAllWorkersThatWereLostAtOnce) {
  set_all(*weights, {1, 2});
  copy(*weights, 3) = {1, 7};
  const Failure failure = lose({1, 2});
  EXPECT_THAT(failure.undefined, ElementsAre("weights"));
  for (const int rank : {1, 2}) {
    EXPECT_THAT(copy(*weights, rank), ElementsAre(1, 2)) << rank;
    EXPECT_TRUE(facts().assigned.has(static_cast<std::size_t>(rank))) << rank;
  }
}

TEST_F(Copies, HaveTheShapeThatASurvivorHasGivenThem) {
  set_all(*weights, {1, 2, 3});
  bool is_first = true;
  session.commands.on_command = [&](const protocol::Command&) {  // the ranks have done their part, and then one is lost
    if (!std::exchange(is_first, false)) return;
    for (const int rank : {0, 2}) {
      copy(*weights, rank) = {4};
      entry_of(*weights).copies()[rank].extents = Extents{1};
    }
    lose({1}, {"weights"});
    throw Error(ErrorKind::worker_lost, "rank 1 was lost");
  };
  const std::vector<float> values{4};
  Sources sources(session.commands);
  const Source source = sources.add(*weights, values.data(), Extents{1});
  EXPECT_THROW(
      to_variables(session.commands, "broadcast", {{weights.get(), whole_for_all(3, source)}}, Leaves::equal_copies),
      Error);
  EXPECT_THAT(copy(*weights, 1), ElementsAre(4));
}

// All ranks had done their part in a command that changes the shape, and the lost rank too: the command has not failed.
TEST_F(Copies, HaveTheShapeThatTheSurvivorsHaveNow) {
  set_all(*weights, {1, 2, 3});
  for (const int rank : {0, 2}) {
    copy(*weights, rank) = {4};
    entry_of(*weights).copies()[rank].extents = Extents{1};
  }
  const Failure failure = lose_rank_1();
  EXPECT_THAT(failure.restored, ElementsAre("weights"));
  EXPECT_THAT(copy(*weights, 1), ElementsAre(4));
  EXPECT_EQ(facts().extents[1][0], 1);
}

TEST_F(Copies, AreNotEqualAnyMoreIfAScatterFailsHalfWayButStillIfItDoesNotBegin) {
  const auto scatter_in_vain = [&] {
    const std::vector<Transfer> transfers{{weights.get(), only_on(3, 0, {})}};
    EXPECT_THROW(to_variables(session.commands, "scatter", transfers, Leaves::other_copies), Error);
    return weights->is_replicated;
  };
  set_all(*weights, {1, 2});
  session.commands.on_command = [](const protocol::Command&) { throw Error(ErrorKind::function, "half"); };
  EXPECT_FALSE(scatter_in_vain());
  session.commands.on_command = nullptr;
  weights->writes.failures.clear();
  set_all(*weights, {1, 2});
  const auto failure = session.calls.failures().note(std::make_exception_ptr(Error(ErrorKind::function, "earlier")));
  weights->writes.failures.push_back({protocol::RankSet::all(3), failure});
  EXPECT_TRUE(scatter_in_vain());
}

// ---- what is known before a wait is refused after it ----------------------------------------------------------

TEST_F(Copies, ArePlannedAfterTheWait) {
  set_all(*weights, {1, 2});
  bool is_first = true;
  session.commands.on_users = [&] {
    if (std::exchange(is_first, false)) lose_rank_1();
  };
  weights->is_replicated = false;
  std::vector<std::int64_t> seen;
  const auto plan = [&](const Room& room) {
    for (const Extents& own : weights->copies(room).extents) seen.push_back(own[0]);
    return only_on(3, 0, {});
  };
  to_variables(session.commands, "zeros", *weights, Leaves::other_copies, plan);
  EXPECT_THAT(seen, ElementsAre(2, 0, 2));
}

TEST_F(Copies, AreRefusedToWhoHasWaitedSince) {
  const Room room = session.commands.settle(protocol::RankSet::only(1));
  EXPECT_NO_THROW(static_cast<void>(weights->copies(room)));
  EXPECT_THAT(error_text([&] { static_cast<void>(room.of(protocol::RankSet::only(0))); }),
              testing::HasSubstr("no room"));
  session.commands.drain_all();
  EXPECT_THAT(error_text([&] { static_cast<void>(weights->copies(room)); }), testing::HasSubstr("before a wait"));
  const auto fill = [](protocol::CommandHead&, master::calls::InFlight&) {};
  EXPECT_THAT(error_text([&] { session.commands.run_system(room, "set", "weights", fill); }),
              testing::HasSubstr("before a wait"));
  static_assert(!std::is_copy_constructible_v<Room> && !std::is_copy_assignable_v<Settled>);
}

/// Ranks 0 and 1 have GPUs, and rank 2 has a CPU device.
class CopiesOfBothKinds : public Copies {
 protected:
  CopiesOfBothKinds() : Copies({{DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}, {DeviceKind::cpu, 0}}) {}
};

TEST_F(CopiesOfBothKinds, AreComparedOnDevicesOfTheLostKind) {
  set_all(*weights, {1, 2});
  copy(*weights, 2) = {1, 2.0000002F};  // the CPU device has rounded in another way
  const Failure failure = lose_rank_1();
  EXPECT_THAT(copy(*weights, 1), ElementsAre(1, 2)) << "that of the other GPU";
  EXPECT_THAT(failure.restored, ElementsAre("weights"));
}

TEST_F(CopiesOfBothKinds, ArePassedOnFromAPeerOfTheSameKind) {
  session.devices = master::devices::RankDevices({{DeviceKind::cpu, 0}, {DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}});
  set_all(*weights, {1, 2});
  copy(*weights, 0) = {3, 4};
  lose_rank_1();
  EXPECT_THAT(copy(*weights, 1), ElementsAre(1, 2)) << "that of rank 2";
}

}  // namespace
}  // namespace syncrun::test
