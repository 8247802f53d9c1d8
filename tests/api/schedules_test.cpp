// Schedules: factors for the learning rate. Many are compared with rates of Python's torch.optim.lr_scheduler
// (tests/support/torch_optim.py).

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <syncrun/syncrun.hpp>

#include "tests/support/on_workers.hpp"
#include "tests/support/torch_optim.hpp"

namespace {

TEST(Schedules, WarmUpReachesOneInItsLastStep) {
  EXPECT_DOUBLE_EQ(sr::warm_up(0, 4), 0.25);
  EXPECT_DOUBLE_EQ(sr::warm_up(2, 4), 0.75);
  EXPECT_DOUBLE_EQ(sr::warm_up(3, 4), 1);
  EXPECT_DOUBLE_EQ(sr::warm_up(1000, 4), 1);
  EXPECT_DOUBLE_EQ(sr::warm_up(0, 0), 1);
}

TEST(Schedules, ACosineFallsFromOneToTheLowestValue) {
  const sr::DecayRange range{.begin = 10, .end = 30, .lowest = 0.1};
  EXPECT_DOUBLE_EQ(sr::cosine_decay(0, range), 1);
  EXPECT_DOUBLE_EQ(sr::cosine_decay(10, range), 1);
  EXPECT_DOUBLE_EQ(sr::cosine_decay(20, range), 0.55);
  EXPECT_DOUBLE_EQ(sr::cosine_decay(30, range), 0.1);
  EXPECT_DOUBLE_EQ(sr::cosine_decay(99, range), 0.1);
  for (std::int64_t i = 11; i <= 30; ++i) EXPECT_LT(sr::cosine_decay(i, range), sr::cosine_decay(i - 1, range));
  EXPECT_NEAR(sr::cosine_decay(15, range), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-15);
}

TEST(Schedules, ALineFallsFromOneToTheLowestValue) {
  const sr::DecayRange range{.begin = 2, .end = 6, .lowest = 0.2};
  EXPECT_DOUBLE_EQ(sr::linear_decay(2, range), 1);
  EXPECT_DOUBLE_EQ(sr::linear_decay(3, range), 0.8);
  EXPECT_DOUBLE_EQ(sr::linear_decay(6, range), 0.2);
  EXPECT_DOUBLE_EQ(sr::linear_decay(7, range), 0.2);
  EXPECT_DOUBLE_EQ(sr::linear_decay(5, {.begin = 5, .end = 5, .lowest = 0.5}), 0.5);
}

TEST(Schedules, StepsMultiplyAtTheirMilestones) {
  constexpr std::array<std::int64_t, 2> kMilestones{30, 60};
  EXPECT_DOUBLE_EQ(sr::step_decay(29, kMilestones, 0.1), 1);
  EXPECT_DOUBLE_EQ(sr::step_decay(30, kMilestones, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(sr::step_decay(60, kMilestones, 0.1), 0.1 * 0.1);
  EXPECT_DOUBLE_EQ(sr::step_decay(60, {}, 0.1), 1);
}

// ---- as in PyTorch -------------------------------------------------------------------------------------------------

template <std::size_t kCount, class Rate>
void expect_rates(const char* name, const std::array<double, kCount>& expected, Rate&& rate) {
  for (std::size_t i = 0; i < kCount; ++i)
    EXPECT_NEAR(rate(static_cast<std::int64_t>(i)), expected[i], 1e-14) << name << " in step " << i;
}

TEST(TorchSchedules, GiveTheSameRates) {
  using I = std::int64_t;
  constexpr std::array<I, 3> kMilestones{5, 9, 30};
  expect_rates("StepLR", torch_optim::kStepLr, [](I i) { return sr::repeated_step_decay(i, 7, 0.3); });
  expect_rates("MultiStepLR", torch_optim::kMultiStepLr, [&](I i) { return sr::step_decay(i, kMilestones, 0.3); });
  expect_rates("ExponentialLR", torch_optim::kExponentialLr, [](I i) { return sr::exponential_decay(i, 0.9); });
  expect_rates("LinearLR", torch_optim::kLinearLr,
               [](I i) { return sr::linear_ramp(i, {.begin = 0, .end = 10, .first = 0.25}); });
  expect_rates("CosineAnnealingLR", torch_optim::kCosineLr,
               [](I i) { return sr::cosine_decay(i, {.begin = 0, .end = 39, .lowest = 0.1}); });
  expect_rates("CosineAnnealingWarmRestarts", torch_optim::kWarmRestarts,
               [](I i) { return sr::cosine_restarts(i, {.first = 5, .growth = 2, .lowest = 0.1}); });
  expect_rates("restarts of equal length", torch_optim::kEqualRestarts,
               [](I i) { return sr::cosine_restarts(i, {.first = 6}); });
}

TEST(TorchSchedules, GiveTheSameCycles) {
  using I = std::int64_t;
  const sr::OneCycle two{.steps = 40};
  expect_rates("OneCycleLR", torch_optim::kOneCycle, [&](I i) { return sr::one_cycle(i, two); });
  expect_rates("its momentum", torch_optim::kOneCycleMomentum, [&](I i) { return sr::one_cycle_momentum(i, two); });
  const sr::OneCycle lines{
      .steps = 40, .rising = 0.45, .first = 0.1, .last = 0.001, .curve = sr::OneCycle::Curve::line};
  expect_rates("lines", torch_optim::kOneCycleLinear, [&](I i) { return sr::one_cycle(i, lines); });
  const sr::OneCycle three{
      .steps = 40, .phases = sr::OneCycle::Phases::three, .lowest_momentum = 0.8, .highest_momentum = 0.99};
  expect_rates("three phases", torch_optim::kOneCycleThree, [&](I i) { return sr::one_cycle(i, three); });
  expect_rates("its momentum", torch_optim::kOneCycleThreeMomentum,
               [&](I i) { return sr::one_cycle_momentum(i, three); });
  EXPECT_EQ(sr::one_cycle(1000, two), two.last) << "after the cycle";
}

// Halfway, another object continues from the state of the first.
template <std::size_t kCount>
void expect_plateau(const std::array<double, kCount>& expected, double sign, const sr::PlateauOptions& options) {
  sr::ReduceOnPlateau first(0.5, options);
  sr::ReduceOnPlateau second(7, options);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i == kCount / 2) second.set_state(first.state());
    auto& now = i < kCount / 2 ? first : second;
    EXPECT_NEAR(now.add(sign * torch_optim::plateau_metric(static_cast<int>(i))), expected[i], 1e-15) << i;
  }
}

TEST(TorchSchedules, ReduceTheRateOnTheSamePlateaus) {
  expect_plateau(torch_optim::kPlateau, 1, {.factor = 0.5, .patience = 2});
  expect_plateau(torch_optim::kPlateauAbsolute, -1,
                 {.better = sr::PlateauOptions::Better::higher,
                  .factor = 0.5,
                  .patience = 1,
                  .threshold = 0.002,
                  .threshold_is = sr::PlateauOptions::Threshold::absolute,
                  .cooldown = 3,
                  .lowest = 0.02});
  expect_plateau(torch_optim::kPlateauNoPatience, 1,
                 {.factor = 0.1, .patience = 0, .threshold = 0.1, .lowest = 1e-4, .least_change = 1e-3});
}

TEST(TorchSchedules, RefuseWhatMakesNoSense) {
  EXPECT_ERROR(sr::repeated_step_decay(3, 0, 0.1), sr::ErrorKind::usage, "every is at least 1, got 0");
  EXPECT_ERROR(sr::cosine_restarts(3, {.first = 0}), sr::ErrorKind::usage, "first is at least 1, got 0");
  EXPECT_ERROR(sr::cosine_restarts(3, {.growth = 0}), sr::ErrorKind::usage, "growth is at least 1, got 0");
  EXPECT_ERROR(sr::one_cycle(3, {}), sr::ErrorKind::usage, "OneCycle: steps is at least 2, got 0");
  EXPECT_ERROR(sr::one_cycle_momentum(3, {.steps = 1}), sr::ErrorKind::usage, "OneCycle: steps is at least 2, got 1");
  EXPECT_ERROR(sr::ReduceOnPlateau(0.1, {.factor = 1}), sr::ErrorKind::usage, "factor is from 0 to below 1, got 1");
  EXPECT_ERROR(sr::ReduceOnPlateau(0.1, {.patience = -1}), sr::ErrorKind::usage, "at least 0, got -1 and 0");
  const double nan = std::nan("");
  EXPECT_ERROR(sr::ReduceOnPlateau{nan}, sr::ErrorKind::usage, "learning_rate is a finite number of at least 0");
  EXPECT_ERROR(sr::ReduceOnPlateau(0.1, {.threshold = nan}), sr::ErrorKind::usage, "threshold is a finite number");
  EXPECT_ERROR(sr::ReduceOnPlateau(0.1, {.lowest = -1}), sr::ErrorKind::usage,
               "lowest is a finite number of at least 0, got -1");
  EXPECT_ERROR(sr::ReduceOnPlateau(0.1, {.least_change = nan}), sr::ErrorKind::usage, "least_change is a finite");
}

}  // namespace
