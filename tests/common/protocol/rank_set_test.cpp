// Sets of ranks: members in order, counted, and found among 1,024.

#include "common/protocol/rank_set.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace {

using syncrun::detail::protocol::kMaxWorldSize;
using syncrun::detail::protocol::RankSet;
using testing::ElementsAre;

std::vector<int> members_of(const RankSet& set) { return {set.begin(), set.end()}; }

TEST(RankSet, HasNoneOrOne) {
  EXPECT_TRUE(RankSet().is_empty());
  EXPECT_THAT(members_of(RankSet()), ElementsAre());
  const RankSet set = RankSet::only(70);
  EXPECT_TRUE(set.is_single());
  EXPECT_EQ(set.first(), 70);
  EXPECT_FALSE(set.has(6)) << "the same bit of another word";
  EXPECT_THAT(members_of(set), ElementsAre(70));
  EXPECT_NE(set, RankSet::all(71));
}

TEST(RankSet, IsInAscendingOrderHoweverItWasMade) {
  RankSet set;
  for (const int rank : {130, 3, 64, 63, 3}) set.add(rank);
  EXPECT_EQ(set.count(), 4);
  EXPECT_THAT(members_of(set), ElementsAre(3, 63, 64, 130));
  EXPECT_EQ(set.position_of(3), 0);
  EXPECT_EQ(set.position_of(64), 2);
  EXPECT_EQ(set.position_of(130), 3);
}

TEST(RankSet, OfAWorldHasAllItsRanksAndNoMore) {
  for (const int world_size : {1, 2, 63, 64, 65, 1000, kMaxWorldSize}) {
    const RankSet set = RankSet::all(world_size);
    EXPECT_EQ(set.count(), world_size);
    int expected = 0;
    for (const int rank : set) EXPECT_EQ(rank, expected++);
    EXPECT_EQ(expected, world_size);
    EXPECT_TRUE(world_size == kMaxWorldSize || !set.has(world_size));
  }
}

TEST(RankSet, GivesThePartBetweenTwoRanks) {
  RankSet set;
  for (const int rank : {3, 63, 64, 130}) set.add(rank);
  const auto between = [&set](int first, int end) {
    const RankSet::Part part = set.between(first, end);
    return std::vector<int>(part.begin(), part.end());
  };
  EXPECT_THAT(between(0, kMaxWorldSize), ElementsAre(3, 63, 64, 130));
  EXPECT_THAT(between(3, 64), ElementsAre(3, 63));
  EXPECT_THAT(between(4, 130), ElementsAre(63, 64));
  EXPECT_THAT(between(65, 130), ElementsAre());
  EXPECT_THAT(between(131, 1000), ElementsAre());
  EXPECT_THAT(between(64, 64), ElementsAre());
}

}  // namespace
