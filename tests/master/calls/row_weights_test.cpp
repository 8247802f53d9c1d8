// How rows are divided in proportion to weights, tested without a session.

#include "master/calls/row_weights.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "common/arrays/row_range.hpp"
#include "syncrun/error.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::calls;
using testing::ElementsAre;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

RowWeights weights_of(const std::vector<double>& weights) { return {weights, static_cast<int>(weights.size())}; }

std::vector<std::int64_t> shares(const RowWeights& weights, std::int64_t rows, const protocol::RankSet& ranks) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(ranks.count()) + 1);
  weights.divide(rows, ranks, begins);
  EXPECT_EQ(begins.front(), 0);
  EXPECT_EQ(begins.back(), rows);
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < begins.size(); ++i) counts.push_back(begins[i] - begins[i - 1]);
  return counts;
}

std::vector<std::int64_t> shares(const std::vector<double>& weights, std::int64_t rows) {
  return shares(weights_of(weights), rows, protocol::RankSet::all(static_cast<int>(weights.size())));
}

TEST(RowWeights, GiveTheRowsThatAreLeftToThoseWhoLostMostByRounding) {
  EXPECT_THAT(shares({1, 2, 4}, 5), ElementsAre(1, 1, 3)) << "5/7, 10/7 and 20/7 rows";
  EXPECT_THAT(shares({1, 2, 4}, 2), ElementsAre(0, 1, 1)) << "2/7, 4/7 and 8/7 rows";
  EXPECT_THAT(shares({3, 1, 1, 3}, 4), ElementsAre(2, 1, 0, 1)) << "1.5, 0.5, 0.5 and 1.5 rows: lower ranks come first";
}

TEST(RowWeights, ThatAreEqualDivideAsNoWeightsDo) {
  for (const int ranks : {1, 2, 3, 7, 64}) {
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, std::int64_t{1000}, kMost}) {
      for (const double weight : {1.0, 0.1, 1e-300, 1e300}) {
        const std::vector<double> equal(static_cast<std::size_t>(ranks), weight);
        EXPECT_TRUE(weights_of(equal).are_equal());
        // One more rank of weight 0 makes it a division by weights.
        std::vector<double> and_none = equal;
        and_none.push_back(0);
        EXPECT_FALSE(weights_of(and_none).are_equal());
        for (const auto& divided : {shares(equal, rows), shares(and_none, rows)}) {
          for (int rank = 0; rank < ranks; ++rank) {
            ASSERT_EQ(divided[static_cast<std::size_t>(rank)], arrays::share_of(rows, ranks, rank).count());
          }
        }
      }
    }
  }
}

// Each rank gets its exact proportion, rounded up or down. The largest numbers do not overflow.
TEST(RowWeights, RoundEveryShareToANeighbour) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> weights(2 + random() % 30);
    for (auto& weight : weights) weight = static_cast<double>(random() % 1024);  // exact in units of the largest
    weights[random() % weights.size()] = 1024;
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const auto rows = static_cast<std::int64_t>(random() % 100000);
    const auto divided = shares(weights, rows);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LT(std::abs(static_cast<double>(divided[i]) - static_cast<double>(rows) * weights[i] / sum), 1);
    }
  }
  std::vector<double> many(protocol::kMaxWorldSize, 1.0);
  many.front() = 0.5;
  std::int64_t all = 0;
  for (const std::int64_t share : shares(many, kMost)) {
    EXPECT_GE(share, 0);
    all += share;
  }
  EXPECT_EQ(all, kMost);
}

}  // namespace
}  // namespace syncrun::test
