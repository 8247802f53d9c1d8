#pragma once

// The learning rate, which changes from step to step.

#include <cstdint>

namespace resnet {

/// A run of `steps` steps. In the first `warmup_steps` of them, the learning rate rises to the peak.
struct Schedule {
  double peak = 0.1;
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;
};

/// The learning rate of step `step`, counted from 0. During the warm-up it rises linearly: it would be 0 one step
/// before the first step, and reaches the peak at the last step of the warm-up. Then it falls from the peak along half
/// a period of a cosine. It would be 0 one step after the last step. Sources: P. Goyal et al., "Accurate, Large
/// Minibatch SGD", arXiv 1706.02677, section 2.2 (gradual warm-up); I. Loshchilov, F. Hutter, "SGDR", arXiv 1608.03983,
/// equation 5, with no restarts and a minimum of 0.
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace resnet
