#pragma once

// ScaledStep: a train step whose loss is scaled, so that small gradients do not vanish in float16. Called by the master.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "syncrun/detail/names.hpp"
#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/training.hpp"
#include "syncrun/train_step.hpp"

namespace syncrun::libtorch {

/// How the factor of a scaled loss adapts. The defaults are those of PyTorch's GradScaler.
struct LossScaling {
  double scale = 65536;  ///< The factor of the first step.
  double growth = 2;     ///< The scale is multiplied by it after `growth_interval` steps without a skipped one.
  double backoff = 0.5;  ///< The scale is multiplied by it after a skipped step.
  std::int64_t growth_interval = 2000;  ///< In steps.
};

/// A train step with a scaled loss. scaled_step() makes it. `Step` is the train step, `Rule` its rule, and `Passed...`
/// lists the parameters of the loss for which the caller passes an argument.
template <class Step, class Rule, class... Passed>
class ScaledStep {
 public:
  /// Syncrun calls this. A program calls scaled_step().
  ScaledStep(Step step, const LossScaling& scaling) : step_(std::move(step)), scaling_(scaling) {}

  /// Trains as a train step, and returns the same: the loss is not scaled. If the gradient is not finite, the step does not
  /// update anything, was_skipped() is true until the next step, and the next scale is smaller. Blocks. Throws as a train
  /// step. Throws Error (function) also if the scale would become smaller than 1e-9: then the values are not finite for
  /// another reason. After a step that threw, was_skipped(), skipped() and scale() are as before it.
  auto operator()(typename syncrun::detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
                  const CallOptions& options = {}) {
    auto result = step_(arguments..., static_cast<float>(scaling_.scale), rule, options);
    const bool is_skipped = !std::isfinite(step_.gradient_norm());
    if (is_skipped) {
      step_.set_steps(step_.steps() - 1);  // rules count updates
      const double smaller = scaling_.scale * scaling_.backoff;
      check_scale(smaller);
      scaling_.scale = smaller;
      ++skipped_;
      good_ = 0;
    } else if (++good_ == scaling_.growth_interval) {
      good_ = 0;
      // A larger factor would not be a float.
      if (scaling_.scale * scaling_.growth <= std::numeric_limits<float>::max()) scaling_.scale *= scaling_.growth;
    }
    was_skipped_ = is_skipped;
    return result;
  }

  /// Whether the last step that did not throw was skipped.
  bool was_skipped() const noexcept { return was_skipped_; }
  /// The number of steps that were skipped so far.
  std::int64_t skipped() const noexcept { return skipped_; }
  /// The factor of the next step. To resume a training, save it, and pass it as LossScaling::scale.
  double scale() const noexcept { return scaling_.scale; }
  /// The train step, for its state, its gradient and its number of updates. A program does not call it by itself.
  Step& inner() noexcept { return step_; }

 private:
  void check_scale(double scale) const {
    constexpr double kSmallest = 1e-9;
    if (scale >= kSmallest) return;
    throw Error(ErrorKind::function,
                "the gradient of step '" + step_.name() + "' is not finite with any scale down to " +
                    syncrun::detail::number_text(scale) +
                    ", so the scale is not the reason. Look at the loss: it may be not finite itself");
  }

  Step step_;
  LossScaling scaling_;
  std::int64_t good_ = 0;
  std::int64_t skipped_ = 0;
  bool was_skipped_ = false;
};

/// Makes a train step for parameters or computations in float16, whose small gradients would become 0. The backward pass
/// starts at the loss times a scale, and the step divides the gradient by it. If the gradient is not finite because the
/// scale was too large, the step is skipped on all ranks. `options` are those of train_step(), and groups, clipping and
/// both forms are those of the unscaled gradient:
///
///   auto step = lt::scaled_step<sr::Adam, loss>(session, net, params);
///   const double mean = step(x, y, {.learning_rate = 1e-3});
///   if (step.was_skipped()) std::printf("skipped, the next scale is %g\n", step.scale());
///
/// After each step, the master waits for the norm of the gradient. Throws Error (usage) if a number of `scaling` makes no
/// sense, and as train_step().
template <UpdateRule Rule, auto kLoss, class Net, class T>
auto scaled_step(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params,
                 const TrainStepOptions& options = {}, const LossScaling& scaling = {}) {
  TrainStepOptions chosen = detail::options_with_name<kLoss>(options);
  const auto is_between = [](double number, double low, double high) { return number >= low && number <= high; };
  if (!is_between(scaling.scale, 1e-9, std::numeric_limits<float>::max()) || !is_between(scaling.growth, 1, 1e9) ||
      !is_between(scaling.backoff, 1e-9, 1) || scaling.backoff == 1 || scaling.growth_interval < 1)
    throw Error(
        ErrorKind::usage,
        "scaled_step: expected a scale above 0, a growth from 1, a backoff between 0 and 1, and an interval from "
        "1, got " +
            syncrun::detail::number_text(scaling.scale) + ", " + syncrun::detail::number_text(scaling.growth) + ", " +
            syncrun::detail::number_text(scaling.backoff) + " and " + std::to_string(scaling.growth_interval));
  detail::check_not_fully_sharded(options.form, "scaled_step");
  if (chosen.clip_norm == 0) chosen.clip_norm = std::numeric_limits<double>::infinity();
  chosen.non_finite = NonFiniteGradient::skip;
  using Bodies = detail::BodiesOf<kLoss, Net, T>;
  auto step = syncrun::train_step<Rule>(session, Bodies::template scaled<CpuWorker>(), Bodies::cuda_scaled(), net,
                                        params, chosen);
  using Made = syncrun::detail::Listed<ScaledStep, typename Bodies::Passed, decltype(step), Rule>;
  return Made(std::move(step), scaling);
}

}  // namespace syncrun::libtorch
