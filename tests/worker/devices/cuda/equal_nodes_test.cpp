// How the ranks of a communicator, and the elements of a vector, are divided among nodes.

#include "worker/devices/cuda/equal_nodes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace syncrun::detail {
namespace {

std::optional<EqualNodes> division_of(const std::vector<std::int64_t>& nodes, int rank = 0) {
  return equal_nodes(nodes, rank);
}

TEST(EqualNodes, HaveThePlaceOfEachRank) {
  const std::vector<std::int64_t> nodes{4, 4, 4, 0, 0, 0};
  for (int rank = 0; rank < 6; ++rank) {
    const auto division = division_of(nodes, rank);
    ASSERT_TRUE(division);
    EXPECT_EQ(division->nodes, 2);
    EXPECT_EQ(division->ranks_per_node, 3);
    EXPECT_EQ(division->node, rank / 3);
    EXPECT_EQ(division->place, rank % 3);
  }
  EXPECT_EQ(division_of({0, 0, 1, 1, 2, 2, 3, 3})->nodes, 4);
}

TEST(EqualNodes, OthersHaveNoDivision) {
  EXPECT_FALSE(division_of({0, 0, 0, 0})) << "one node";
  EXPECT_FALSE(division_of({0, 1, 2, 3})) << "one rank on each node";
  EXPECT_FALSE(division_of({0, 0, 1})) << "one node has fewer";
  EXPECT_FALSE(division_of({0, 1, 1})) << "one node has more";
  EXPECT_FALSE(division_of({0, 0, 1, 1, 1, 2})) << "different numbers, although the ranks can be divided by two";
  EXPECT_FALSE(division_of({0, 0, 1, 2})) << "the last two nodes have one each";
  EXPECT_FALSE(division_of({0})) << "one rank";
}

TEST(NodeDivision, EveryElementBelongsToOneRank) {
  for (const std::size_t elements : {3U, 4U, 5U, 1000U, 1001U, 1002U}) {
    const NodeDivision division = NodeDivision::of(elements, 3);
    std::size_t next = 0;
    for (int place = 0; place < 3; ++place) {
      EXPECT_EQ(division.begin(place), next);
      next += division.count(place, 3);
    }
    EXPECT_EQ(next, elements);
    EXPECT_EQ(elements - division.remainder, 3 * division.part);
  }
}

}  // namespace
}  // namespace syncrun::detail
