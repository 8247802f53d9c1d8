// Schedules: factors for the learning rate.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <syncrun/schedules.hpp>

namespace {

TEST(Schedules, WarmUpReachesOneInItsLastStep) {
  EXPECT_DOUBLE_EQ(syncrun::warm_up(0, 4), 0.25);
  EXPECT_DOUBLE_EQ(syncrun::warm_up(2, 4), 0.75);
  EXPECT_DOUBLE_EQ(syncrun::warm_up(3, 4), 1);
  EXPECT_DOUBLE_EQ(syncrun::warm_up(1000, 4), 1);
  EXPECT_DOUBLE_EQ(syncrun::warm_up(0, 0), 1);
}

TEST(Schedules, ACosineFallsFromOneToTheLowestValue) {
  const syncrun::DecayRange range{.begin = 10, .end = 30, .lowest = 0.1};
  EXPECT_DOUBLE_EQ(syncrun::cosine_decay(0, range), 1);
  EXPECT_DOUBLE_EQ(syncrun::cosine_decay(10, range), 1);
  EXPECT_DOUBLE_EQ(syncrun::cosine_decay(20, range), 0.55);
  EXPECT_DOUBLE_EQ(syncrun::cosine_decay(30, range), 0.1);
  EXPECT_DOUBLE_EQ(syncrun::cosine_decay(99, range), 0.1);
  for (std::int64_t i = 11; i <= 30; ++i)
    EXPECT_LT(syncrun::cosine_decay(i, range), syncrun::cosine_decay(i - 1, range));
  EXPECT_NEAR(syncrun::cosine_decay(15, range), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-15);
}

TEST(Schedules, ALineFallsFromOneToTheLowestValue) {
  const syncrun::DecayRange range{.begin = 2, .end = 6, .lowest = 0.2};
  EXPECT_DOUBLE_EQ(syncrun::linear_decay(2, range), 1);
  EXPECT_DOUBLE_EQ(syncrun::linear_decay(3, range), 0.8);
  EXPECT_DOUBLE_EQ(syncrun::linear_decay(6, range), 0.2);
  EXPECT_DOUBLE_EQ(syncrun::linear_decay(7, range), 0.2);
  EXPECT_DOUBLE_EQ(syncrun::linear_decay(5, {.begin = 5, .end = 5, .lowest = 0.5}), 0.5);
}

TEST(Schedules, StepsMultiplyAtTheirMilestones) {
  constexpr std::array<std::int64_t, 2> kMilestones{30, 60};
  EXPECT_DOUBLE_EQ(syncrun::step_decay(29, kMilestones, 0.1), 1);
  EXPECT_DOUBLE_EQ(syncrun::step_decay(30, kMilestones, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(syncrun::step_decay(60, kMilestones, 0.1), 0.1 * 0.1);
  EXPECT_DOUBLE_EQ(syncrun::step_decay(60, {}, 0.1), 1);
}

}  // namespace
