#include "master/profile/coverage.hpp"

#include <gtest/gtest.h>

namespace syncrun::test {
namespace {

using detail::master::profile::Coverage;

TEST(Coverage, CountsTheTimeOfOverlappingCallsOnce) {
  Coverage coverage;
  coverage.add(100, 200);
  coverage.add(150, 250);  // overlaps
  coverage.add(400, 500);
  coverage.add(300, 310);  // comes late
  coverage.add(305, 450);  // joins two
  EXPECT_EQ(coverage.covered_ns(), 150 + 200);
  EXPECT_EQ(coverage.sum_ns(), 100 + 100 + 100 + 10 + 145);
  EXPECT_EQ(coverage.elapsed_ns(), 400);
}

TEST(Coverage, KeepsWhatIsSettled) {
  Coverage coverage;
  for (std::int64_t i = 0; i < 1000; ++i) {
    coverage.add(10 * i, 10 * i + 4);
    coverage.settle(10 * i);
  }
  EXPECT_EQ(coverage.covered_ns(), 4000);
  EXPECT_EQ(coverage.elapsed_ns(), 9994);
}

TEST(Coverage, IsZeroWithoutCalls) {
  EXPECT_EQ(Coverage().covered_ns(), 0);
  EXPECT_EQ(Coverage().elapsed_ns(), 0);
}

}  // namespace
}  // namespace syncrun::test
