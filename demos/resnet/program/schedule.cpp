#include "demos/resnet/program/schedule.hpp"

#include <cmath>
#include <numbers>

namespace resnet {

double learning_rate(const Schedule& schedule, std::int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (step >= schedule.steps) return 0;
  const double part =
      static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(schedule.steps - schedule.warmup_steps);
  return schedule.peak * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace resnet
