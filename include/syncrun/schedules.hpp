#pragma once

// Schedules: factors for the learning rate that depend on the number of the step, from 0. A program multiplies them:
//
//   for (std::int64_t i = 0; i < steps; ++i) {
//     const double rate = 3e-4 * warm_up(i, 100) * cosine_decay(i, {.begin = 100, .end = steps, .lowest = 0.1});
//     step(x, y, {.learning_rate = rate});
//   }
//
// The functions keep no state. So a run that is resumed at step i continues them.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

namespace syncrun {

/// Rises linearly for the first `steps` steps: 1 / steps in step 0, and 1 from step `steps` - 1 on. Without steps, it is
/// always 1.
constexpr double warm_up(std::int64_t step, std::int64_t steps) noexcept {
  return step + 1 >= steps ? 1 : static_cast<double>(step + 1) / static_cast<double>(steps);
}

/// The range of a decay: the factor is 1 up to step `begin`, and `lowest` from step `end` on.
struct DecayRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double lowest = 0;
};

/// Falls from 1 to `lowest` along half a period of a cosine. Source: I. Loshchilov, F. Hutter, "SGDR", arXiv 1608.03983,
/// equation 5, without restarts.
inline double cosine_decay(std::int64_t step, const DecayRange& range) noexcept {
  if (step >= range.end) return range.lowest;
  if (step <= range.begin) return 1;
  const double part = static_cast<double>(step - range.begin) / static_cast<double>(range.end - range.begin);
  return range.lowest + (1 - range.lowest) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

/// Falls from 1 to `lowest` linearly.
constexpr double linear_decay(std::int64_t step, const DecayRange& range) noexcept {
  if (step >= range.end) return range.lowest;
  if (step <= range.begin) return 1;
  const double part = static_cast<double>(step - range.begin) / static_cast<double>(range.end - range.begin);
  return 1 + (range.lowest - 1) * part;
}

/// Is multiplied by `factor` at each of the `milestones`, which are numbers of steps.
constexpr double step_decay(std::int64_t step, std::span<const std::int64_t> milestones, double factor) noexcept {
  double product = 1;
  for (const std::int64_t milestone : milestones) product *= step >= milestone ? factor : 1;
  return product;
}

}  // namespace syncrun
