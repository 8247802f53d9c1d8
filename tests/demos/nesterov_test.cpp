#include "demos/common/nesterov.hpp"

#include <gtest/gtest.h>

#include <array>

namespace demos {
namespace {

// With lookahead q = p + momentum * v, the textbook form evaluates the gradient at q: v' = m v - r g(q),
// p' = p + v'. The rewritten form follows q itself.
TEST(Nesterov, FollowsTheLookaheadPointOfTheTextbookForm) {
  const auto slope = [](double at) { return 2 * at; };
  constexpr double kRate = 0.1;
  constexpr double kMomentum = 0.8;
  double point = 1;
  double point_velocity = 0;
  std::array<double, 1> params{1};
  std::array<double, 1> velocity{0};
  for (int step = 0; step < 10; ++step) {
    point_velocity = kMomentum * point_velocity - kRate * slope(point + kMomentum * point_velocity);
    point += point_velocity;
    const std::array<double, 1> gradient{slope(params[0])};
    nesterov_update<double>(params, velocity, gradient, kRate, kMomentum);
    EXPECT_NEAR(params[0], point + kMomentum * point_velocity, 1e-14);
  }
}

TEST(Nesterov, RefusesVectorsOfDifferentLengths) {
  std::array<float, 2> params{};
  std::array<float, 1> velocity{};
  const std::array<float, 2> gradient{};
  EXPECT_THROW(nesterov_update<float>(params, velocity, gradient, 0.1F, 0.9F), std::invalid_argument);
}

}  // namespace
}  // namespace demos
