#include "demos/resnet/program/schedule.hpp"

#include <gtest/gtest.h>

namespace resnet {
namespace {

constexpr Schedule kSchedule{.peak = 0.8, .warmup_steps = 4, .steps = 12};

TEST(Schedule, RisesInALineToThePeakAndFallsAlongACosineToZero) {
  EXPECT_DOUBLE_EQ(learning_rate(kSchedule, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(kSchedule, 3), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(kSchedule, 4), 0.8);
  EXPECT_NEAR(learning_rate(kSchedule, 6), 0.4 * (1 + 0.70710678118654752), 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(kSchedule, 8), 0.4) << "half way";
  EXPECT_GT(learning_rate(kSchedule, 11), 0);
  EXPECT_DOUBLE_EQ(learning_rate(kSchedule, 100), 0) << "a run that goes on to fewer epochs";
  EXPECT_DOUBLE_EQ(learning_rate({.peak = 1, .warmup_steps = 0, .steps = 2}, 0), 1) << "without a warm-up";
  EXPECT_DOUBLE_EQ(learning_rate({.peak = 1, .warmup_steps = 8, .steps = 4}, 3), 0.5) << "with nothing else";
}

}  // namespace
}  // namespace resnet
