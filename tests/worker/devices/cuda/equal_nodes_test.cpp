// How the ranks of a communicator, and the elements of a vector, are divided among nodes.

#include "worker/devices/cuda/equal_nodes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace syncrun::detail {
namespace {

std::optional<worker::devices::cuda::EqualNodes> division_of(const std::vector<std::int64_t>& nodes, int rank = 0) {
  return worker::devices::cuda::equal_nodes(nodes, rank);
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
  for (const std::size_t elements : {3U, 12U, 13U, 1000U, 1001U, 1002U}) {
    const worker::devices::cuda::NodeDivision division =
        worker::devices::cuda::NodeDivision::of(elements, sizeof(float), 3);
    EXPECT_EQ(division.part * sizeof(float) % 16, 0u);
    EXPECT_LT(division.remainder, 3u * 4 + 3) << "less than a unit for each rank, and what cannot be divided";
    std::size_t next = 0;
    for (int place = 0; place < 3; ++place) {
      EXPECT_EQ(division.begin(place), next);
      next += division.count(place, 3);
    }
    EXPECT_EQ(next, elements);
    EXPECT_EQ(elements - division.remainder, 3 * division.part);
  }
}

TEST(NodeDivision, APartIsAMultipleOfSixteenBytes) {
  EXPECT_EQ(worker::devices::cuda::NodeDivision::of(1000, 1, 3).part, 320u);
  EXPECT_EQ(worker::devices::cuda::NodeDivision::of(1000, 2, 3).part, 328u);
  EXPECT_EQ(worker::devices::cuda::NodeDivision::of(1000, 8, 3).part, 332u);
  EXPECT_EQ(worker::devices::cuda::NodeDivision::of(7, 4, 2).part, 0u);
  EXPECT_EQ(worker::devices::cuda::NodeDivision::of(7, 4, 2).remainder, 7u);
}

}  // namespace
}  // namespace syncrun::detail
