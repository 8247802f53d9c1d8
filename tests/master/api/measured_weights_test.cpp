// Weights from measured times.

#include "master/api/measured_weights.hpp"

#include <gmock/gmock.h>

namespace syncrun::test {
namespace {

using detail::weights_from;
using testing::DoubleEq;
using testing::ElementsAre;

using Times = std::vector<std::vector<double>>;

TEST(WeightsFromTimes, IgnoreTheCallsThatWarmUp) {
  const Times times{{900, 1}, {1, 700}, {30, 10}};
  EXPECT_THAT(weights_from(times), ElementsAre(DoubleEq(0.25), DoubleEq(0.75)));
}

// A rank that another program disturbed once has the same weight as without the disturbance.
TEST(WeightsFromTimes, UseTheMedianOfEachRank) {
  const Times times{{1, 1}, {1, 1}, {800, 10}, {30, 9}, {29, 600}};
  EXPECT_THAT(weights_from(times), ElementsAre(DoubleEq(0.25), DoubleEq(0.75)));
}

}  // namespace
}  // namespace syncrun::test
