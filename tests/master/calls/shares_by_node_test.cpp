// How rows are divided if each node has only some of them, tested without a session.

#include "master/calls/shares_by_node.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::calls;
using testing::ElementsAre;

/// Three nodes with two, one and three ranks, and with 4, 0 and 6 rows.
class SharesByNode : public testing::Test {
 protected:
  static constexpr std::uint64_t kIndices = std::uint64_t{1} << 20U;
  std::vector<std::int64_t> begins(const protocol::RowsSlot& batch, const protocol::RankSet& ranks,
                                   const RowWeights& weights = {}) const {
    std::vector<std::int64_t> begins(static_cast<std::size_t>(ranks.count()) + 1, -1);
    divide_by_node({"'x'", there, nodes}, batch, segment, ranks, weights, begins);
    return begins;
  }
  protocol::RowsSlot list(const std::vector<std::int64_t>& indices) const {
    std::copy(indices.begin(), indices.end(), segment.at<std::int64_t>(kIndices));
    return {Rows::Kind::list, 0, static_cast<std::int64_t>(indices.size()), kIndices};
  }
  static protocol::RowsSlot slice(std::int64_t begin, std::int64_t end) { return {Rows::Kind::slice, begin, end, 0}; }

  const os::Segment segment = os::Segment::create(os::Segment::kSmallestReservation);
  const std::vector<arrays::RowRange> there{{0, 4}, {4, 4}, {4, 10}};
  const std::vector<protocol::NodePlace> nodes{{0, 3, 0, 2}, {1, 3, 2, 1}, {2, 3, 3, 3}};
  const protocol::RankSet all = protocol::RankSet::all(6);
};

TEST_F(SharesByNode, GiveEachRankRowsOfItsNode) {
  EXPECT_THAT(begins(slice(0, 10), all), ElementsAre(0, 2, 4, 4, 6, 8, 10));
  EXPECT_THAT(begins(slice(3, 8), all), ElementsAre(0, 1, 1, 1, 3, 4, 5));
  EXPECT_THAT(begins(slice(4, 10), all), ElementsAre(0, 0, 0, 0, 2, 4, 6));
  EXPECT_THAT(begins(list({3, 0, 2, 9, 4, 4}), all), ElementsAre(0, 2, 3, 3, 4, 5, 6));
  const RowWeights weights(std::vector<double>{1, 0, 1, 0, 1, 2}, 6);
  EXPECT_THAT(begins(slice(0, 10), all, weights), ElementsAre(0, 4, 4, 4, 4, 6, 10));
}

TEST_F(SharesByNode, AreThoseOfTheRanksOfTheCall) {
  protocol::RankSet some = protocol::RankSet::only(1);
  some.add(5);
  EXPECT_THAT(begins(slice(1, 6), some), ElementsAre(0, 3, 5));
  EXPECT_THAT(begins(slice(4, 10), protocol::RankSet::only(4)), ElementsAre(0, 6));
}

TEST_F(SharesByNode, AreRefusedIfARankWouldReadRowsOfAnotherNode) {
  EXPECT_THROW(begins(slice(0, 10), protocol::RankSet::only(0)), Error);
  EXPECT_THROW(begins(slice(3, 5), protocol::RankSet::only(4)), Error);
  EXPECT_THROW(begins(list({0, 4, 3}), all), Error);
  EXPECT_THROW(begins(slice(0, 10), all, RowWeights(std::vector<double>{0, 0, 1, 1, 1, 1}, 6)), Error);
}

/// Compares with a rank for each index.
TEST_F(SharesByNode, AgreeWithASimpleModel) {
  std::mt19937 random(1);
  const auto node_of = [&](std::int64_t index) { return index < 4 ? 0 : 2; };
  for (int step = 0; step < 2000; ++step) {
    std::vector<std::int64_t> indices(1 + random() % 8);
    for (std::int64_t& index : indices) index = static_cast<std::int64_t>(random() % 10);
    const bool is_in_order =
        std::is_sorted(indices.begin(), indices.end(), [&](auto a, auto b) { return node_of(a) < node_of(b); });
    if (!is_in_order) {
      ASSERT_THROW(begins(list(indices), all), Error);
      continue;
    }
    const std::vector<std::int64_t> shares = begins(list(indices), all);
    for (int rank = 0; rank < 6; ++rank) {
      for (std::int64_t at = shares[static_cast<std::size_t>(rank)]; at < shares[static_cast<std::size_t>(rank) + 1];
           ++at)
        ASSERT_TRUE(nodes[static_cast<std::size_t>(node_of(indices[static_cast<std::size_t>(at)]))].has(rank));
    }
    ASSERT_EQ(shares.front(), 0);
    ASSERT_EQ(shares.back(), static_cast<std::int64_t>(indices.size()));
  }
}

}  // namespace
}  // namespace syncrun::test
