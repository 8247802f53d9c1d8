// Variables that the program no longer uses: when the master frees them, and by which command.

#include "launcher/variables/freed_variables.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::IsEmpty;

class FreedVariables : public testing::Test {
 protected:
  FreedVariables() { session.commands.leaves_in_flight = true; }

  /// The program drops a variable with copies on these ranks. Returns the offset of its entry.
  std::uint64_t drop(const RankSet& ranks) {
    const std::uint64_t entry =
        session.heap.allocate(VariableEntry::bytes(3), SharedHeap::Contents::zero, "a variable");
    registry.free_later({.entry = entry, .host = 0, .ranks = ranks});
    return entry;
  }
  /// The variables that the last command frees.
  std::vector<std::uint64_t> freed() const {
    std::vector<std::uint64_t> entries;
    std::uint64_t next = session.calls.command(session.calls.last_published()).as<FreePayload>().first;
    while (next != 0) {
      entries.push_back(next);
      next = session.pool.segment().at<VariableEntry>(next)->next_freed;
    }
    return entries;
  }

  PlayedSession session{{{}, {}, {}}};
  Registry registry;
};

TEST_F(FreedVariables, AreFreedByOneCommandOfTheRanksThatHaveCopies) {
  const std::size_t before = session.heap.used_bytes();
  const auto first = drop(RankSet::only(2));
  const auto nowhere = drop(RankSet());
  const auto second = drop(RankSet::only(0));
  EXPECT_TRUE(registry.has_releases());
  free_variables(session.commands, registry);
  EXPECT_FALSE(registry.has_releases());
  ASSERT_THAT(session.commands.log, ElementsAre("free of variables"));
  EXPECT_THAT(freed(), ElementsAre(second, first)) << nowhere << " has no copies";
  const auto command = session.calls.last_published();
  RankSet ranks = RankSet::only(0);
  ranks.add(2);
  EXPECT_EQ(session.calls.command(command).ranks, ranks);
  session.commands.finish(command);
  EXPECT_EQ(session.heap.used_bytes(), before);
}

TEST_F(FreedVariables, WaitForRoomOnTheirOwnRanksOnly) {
  for (std::size_t i = 0; i < kInboxSize; ++i) {
    session.calls.next(RankSet::only(1), Milliseconds(0));
    session.calls.publish();
  }
  const auto oldest = session.calls.entries().front().id;
  const auto on_busy_rank = drop(RankSet::only(1));
  for (int i = 0; i < 30; ++i) drop(RankSet::only(0));
  free_variables(session.commands, registry);
  EXPECT_THAT(session.commands.log, IsEmpty()) << "there will be more";
  drop(RankSet::only(0));
  free_variables(session.commands, registry);
  ASSERT_THAT(session.commands.log, ElementsAre("free of variables"));
  EXPECT_EQ(session.calls.command(session.calls.last_published()).ranks, RankSet::only(0));
  EXPECT_THAT(freed(), testing::SizeIs(31));
  EXPECT_TRUE(registry.has_releases());
  session.commands.finish(oldest);
  free_variables(session.commands, registry);
  EXPECT_THAT(freed(), ElementsAre(on_busy_rank));
  EXPECT_FALSE(registry.has_releases());
}

TEST_F(FreedVariables, WithoutCopiesNeedNoCommand) {
  const std::size_t before = session.heap.used_bytes();
  drop(RankSet());
  free_variables(session.commands, registry);
  EXPECT_THAT(session.commands.log, IsEmpty());
  EXPECT_EQ(session.heap.used_bytes(), before);
}

}  // namespace
}  // namespace syncrun::test
