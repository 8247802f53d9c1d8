#pragma once

// Schedules: factors for the learning rate that depend on the number of the step, from 0. A program multiplies them:
//
//   for (std::int64_t i = 0; i < steps; ++i) {
//     const double rate = 3e-4 * warm_up(i, 100) * cosine_decay(i, {.begin = 100, .end = steps, .lowest = 0.1});
//     step(x, y, {.learning_rate = rate});
//   }
//
// The functions keep no state. So a run that is resumed at step i continues them. ReduceOnPlateau has a state, because
// it looks at a metric. Where a comment names a class of torch.optim.lr_scheduler, the rate is that of this class.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <utility>

#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"

namespace syncrun {

namespace detail {
inline void check_at_least(const char* name, std::int64_t least, std::int64_t value) {
  if (value < least)
    throw Error(ErrorKind::usage,
                std::string(name) + " is at least " + std::to_string(least) + ", got " + std::to_string(value));
}
}  // namespace detail

/// Rises linearly for the first `steps` steps: 1 / steps in step 0, and 1 from step `steps` - 1 on. Without steps, it
/// is always 1.
constexpr double warm_up(std::int64_t step, std::int64_t steps) noexcept {
  return step + 1 >= steps ? 1 : static_cast<double>(step + 1) / static_cast<double>(steps);
}

/// The range of a decay: the factor is 1 up to step `begin`, and `lowest` from step `end` on.
struct DecayRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double lowest = 0;
};

/// Falls from 1 to `lowest` along half a period of a cosine. Source: I. Loshchilov, F. Hutter, "SGDR", arXiv
/// 1608.03983, equation 5, without restarts. As CosineAnnealingLR up to step `end`.
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

/// A line from `first` in step `begin` to `last` in step `end`. With begin 0, as LinearLR.
struct RampRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  double first = 0;
  double last = 1;
};
/// Changes linearly. It is `first` before the range, and `last` after it.
constexpr double linear_ramp(std::int64_t step, const RampRange& range) noexcept {
  if (step >= range.end) return range.last;
  if (step <= range.begin) return range.first;
  const double part = static_cast<double>(step - range.begin) / static_cast<double>(range.end - range.begin);
  return range.first + (range.last - range.first) * part;
}

/// Is multiplied by `factor` in each step, as ExponentialLR.
inline double exponential_decay(std::int64_t step, double factor) noexcept {
  return std::pow(factor, static_cast<double>(step));
}

/// Is multiplied by `factor` after each `every` steps, as StepLR. Throws Error (usage) if `every` is below 1.
inline double repeated_step_decay(std::int64_t step, std::int64_t every, double factor) {
  detail::check_at_least("repeated_step_decay: every", 1, every);
  const std::int64_t times = step / every;
  return std::pow(factor, static_cast<double>(times));
}

/// Is multiplied by `factor` at each of the `milestones`, which are numbers of steps. As MultiStepLR.
constexpr double step_decay(std::int64_t step, std::span<const std::int64_t> milestones, double factor) noexcept {
  double product = 1;
  for (const std::int64_t milestone : milestones) product *= step >= milestone ? factor : 1;
  return product;
}

/// The periods of cosine_restarts().
struct RestartPeriods {
  std::int64_t first = 1;   ///< The number of steps of the first period, at least 1.
  std::int64_t growth = 1;  ///< Each period has this many times the steps of the one before, at least 1.
  double lowest = 0;
};
/// In each period, falls from 1 towards `lowest` along half a period of a cosine. Source: I. Loshchilov, F. Hutter,
/// "SGDR", arXiv 1608.03983, equation 5. As CosineAnnealingWarmRestarts. Throws Error (usage) if `first` or `growth` is
/// below 1.
inline double cosine_restarts(std::int64_t step, const RestartPeriods& periods) {
  detail::check_at_least("cosine_restarts: first", 1, periods.first);
  detail::check_at_least("cosine_restarts: growth", 1, periods.growth);
  std::int64_t length = periods.first;
  if (periods.growth == 1) step %= length;
  for (; step >= length; length *= periods.growth) step -= length;
  return cosine_decay(step, {.begin = 0, .end = length, .lowest = periods.lowest});
}

/// A cycle of one_cycle(). Its rates are fractions of the highest one.
struct OneCycle {
  /// The form of the curve between two rates.
  enum class Curve : bool {
    cosine,  ///< Half a period of a cosine.
    line     ///< A line.
  };
  /// How the rate falls after it has risen.
  enum class Phases : bool {
    two,   ///< From 1 to `last`.
    three  ///< From 1 to `first`, in as many steps as it rose, and then to `last`.
  };

  std::int64_t steps = 0;        ///< The number of steps of the whole cycle, at least 2.
  double rising = 0.3;           ///< The fraction of the steps in which the rate rises. With three phases, at most 0.5.
  double first = 1.0 / 25;       ///< The rate in the first step. In OneCycleLR, 1 / div_factor.
  double last = 1.0 / 25 / 1e4;  ///< The rate in the last step. In OneCycleLR, first / final_div_factor.
  Curve curve = Curve::cosine;   ///< The form of the curve between two rates.
  Phases phases = Phases::two;   ///< How the rate falls after it has risen.
  double lowest_momentum = 0.85;   ///< At the highest rate.
  double highest_momentum = 0.95;  ///< In the first and the last step.
};

namespace detail {
/// A value at `part` of the way from one value to another.
inline double between(double from, double to, double part, OneCycle::Curve curve) noexcept {
  if (part >= 1) return to;
  if (curve == OneCycle::Curve::line) return from + (to - from) * part;
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}
/// The value at a step of a cycle that goes from `low` to `high`, to `back`, and with three phases to `end`.
inline double in_cycle(std::int64_t step, const OneCycle& cycle, double low, double high, double back, double end) {
  check_at_least("OneCycle: steps", 2, cycle.steps);
  const auto at = static_cast<double>(step);
  const double steps = static_cast<double>(cycle.steps);
  const double top = cycle.rising * steps - 1;
  const double bottom = 2 * top;
  const auto part = [at](double begin, double until) { return until > begin ? (at - begin) / (until - begin) : 1; };
  if (at <= top) return between(low, high, part(0, top), cycle.curve);
  if (cycle.phases == OneCycle::Phases::two) return between(high, end, part(top, steps - 1), cycle.curve);
  if (at <= bottom) return between(high, back, part(top, bottom), cycle.curve);
  return between(back, end, part(bottom, steps - 1), cycle.curve);
}
}  // namespace detail

/// Rises from `first` to 1, and falls to `last`. Source: L. Smith, N. Topin, "Super-Convergence", arXiv 1708.07120. As
/// OneCycleLR. After the last step, it is `last`. Throws Error (usage) if `steps` is below 2.
inline double one_cycle(std::int64_t step, const OneCycle& cycle) {
  return detail::in_cycle(step, cycle, cycle.first, 1, cycle.first, cycle.last);
}
/// The momentum, or beta1, of the same cycle. It is low where the rate is high. It is no factor, but the value itself.
/// Throws Error (usage) if `steps` is below 2.
inline double one_cycle_momentum(std::int64_t step, const OneCycle& cycle) {
  const double high = cycle.highest_momentum;
  return detail::in_cycle(step, cycle, high, cycle.lowest_momentum, high, high);
}

/// Options of ReduceOnPlateau.
struct PlateauOptions {
  /// Which metric is better.
  enum class Better : bool {
    lower,  ///< A lower one, such as a loss.
    higher  ///< A higher one, such as an accuracy.
  };
  /// What the threshold is.
  enum class Threshold : bool {
    relative,  ///< A fraction of the best metric.
    absolute   ///< A difference from the best metric.
  };

  Better better = Better::lower;                 ///< Which metric is better.
  double factor = 0.1;                           ///< A reduction multiplies the rate by it. From 0 to below 1.
  std::int64_t patience = 10;                    ///< This many metrics in a row may be no better than the best.
  double threshold = 1e-4;                       ///< By how much a metric must be better than the best.
  Threshold threshold_is = Threshold::relative;  ///< What the threshold is.
  std::int64_t cooldown = 0;                     ///< After a reduction, this many metrics do not count as no better.
  double lowest = 0;                             ///< The lowest rate.
  double least_change = 1e-8;  ///< A smaller change of the rate is left out. In ReduceLROnPlateau, eps.
};

/// Reduces the learning rate when a metric, such as the loss on other data, gets no better. As ReduceLROnPlateau.
///
///   ReduceOnPlateau plateau(0.1, {.patience = 3});
///   for (...) {
///     for (...) step(x, y, {.learning_rate = plateau.learning_rate()});
///     plateau.add(evaluate(x_test, y_test));
///   }
class ReduceOnPlateau {
 public:
  /// For checkpoints: all that changes.
  struct State {
    double learning_rate = 0;        ///< The rate from now on.
    double best = 0;                 ///< The best metric so far.
    std::int64_t no_better = 0;      ///< How many metrics in a row were no better.
    std::int64_t cooldown_left = 0;  ///< How many metrics the cooldown still lasts.
  };

  /// Starts with this rate. Throws Error (usage) if the rate or an option is out of range.
  explicit ReduceOnPlateau(double learning_rate, const PlateauOptions& options = {}) : options_(options) {
    if (!(options.factor >= 0 && options.factor < 1))
      throw Error(ErrorKind::usage,
                  "ReduceOnPlateau: factor is from 0 to below 1, got " + detail::number_text(options.factor));
    if (options.patience < 0 || options.cooldown < 0)
      throw Error(ErrorKind::usage, "ReduceOnPlateau: patience and cooldown are at least 0, got " +
                                        std::to_string(options.patience) + " and " + std::to_string(options.cooldown));
    const std::initializer_list<std::pair<const char*, double>> not_negative{
        {"learning_rate", learning_rate},
        {"threshold", options.threshold},
        {"lowest", options.lowest},
        {"least_change", options.least_change},
    };
    for (const auto& [name, value] : not_negative) {
      if (!std::isfinite(value) || value < 0)
        throw Error(ErrorKind::usage, std::string("ReduceOnPlateau: ") + name +
                                          " is a finite number of at least 0, got " + detail::number_text(value));
    }
    const double worst = std::numeric_limits<double>::infinity();
    state_ = {.learning_rate = learning_rate, .best = options.better == PlateauOptions::Better::lower ? worst : -worst};
  }

  /// Takes a new metric and returns the rate from now on. NaN is no better than any metric.
  double add(double metric) noexcept {
    if (is_better(metric)) {
      state_.best = metric;
      state_.no_better = 0;
    } else {
      ++state_.no_better;
    }
    if (state_.cooldown_left > 0) {
      --state_.cooldown_left;
      state_.no_better = 0;
    }
    if (state_.no_better > options_.patience) {
      reduce();
      state_.cooldown_left = options_.cooldown;
      state_.no_better = 0;
    }
    return state_.learning_rate;
  }
  /// The rate from now on.
  double learning_rate() const noexcept { return state_.learning_rate; }
  /// All that changes, for a checkpoint.
  const State& state() const noexcept { return state_; }
  /// Continues from a state of another ReduceOnPlateau with the same options.
  void set_state(const State& state) noexcept { state_ = state; }

 private:
  bool is_better(double metric) const noexcept {
    const bool is_relative = options_.threshold_is == PlateauOptions::Threshold::relative;
    const double margin = options_.threshold;
    if (options_.better == PlateauOptions::Better::lower)
      return metric < (is_relative ? state_.best * (1 - margin) : state_.best - margin);
    return metric > (is_relative ? state_.best * (1 + margin) : state_.best + margin);
  }
  void reduce() noexcept {
    const double product = state_.learning_rate * options_.factor;
    const double reduced = product < options_.lowest ? options_.lowest : product;
    if (state_.learning_rate - reduced > options_.least_change) state_.learning_rate = reduced;
  }

  PlateauOptions options_;
  State state_;
};

}  // namespace syncrun
