#pragma once

// The arithmetic of the update rules for one parameter. It is the same for every kind of device.
// syncrun/update_rules.hpp has the formulas and their sources. UpdateStep<Rule, T> contains the values that are the
// same for all parameters.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "syncrun/update_rules.hpp"

namespace syncrun::detail::arrays {

/// base^exponent for exponent >= 0. Computed by squaring, so that the bits are the same on every device.
constexpr double power(double base, std::int64_t exponent) noexcept {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result *= base;
    base *= base;
  }
  return result;
}

template <class Rule, class T>
struct UpdateStep;

template <class T>
struct UpdateStep<Sgd, T> {
  constexpr explicit UpdateStep(const Sgd& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)), decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T*) const { p -= rate * (g + decay * p); }
  T rate, decay;
};

template <class T>
struct UpdateStep<SgdMomentum, T> {
  constexpr explicit UpdateStep(const SgdMomentum& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        kept(static_cast<T>(rule.momentum)),
        added(static_cast<T>(rule.step <= 1 || rule.momentum == 0 ? 1 : 1 - rule.dampening)),
        decay(static_cast<T>(rule.weight_decay)),
        of_gradient(rule.nesterov ? 1 : 0),
        of_buffer(static_cast<T>(rule.nesterov ? rule.momentum : 1)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept * state[0] + added * g;
    p -= rate * (of_gradient * g + of_buffer * state[0]);
  }
  T rate, kept, added, decay, of_gradient, of_buffer;
};

/// The constants of Momentum and of Nesterov.
template <class T>
struct MomentumConstants {
  constexpr explicit MomentumConstants(const auto& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        momentum(static_cast<T>(rule.momentum)),
        decay(static_cast<T>(rule.weight_decay)) {}
  T rate, momentum, decay;
};
template <class T>
struct UpdateStep<Momentum, T> : MomentumConstants<T> {
  using MomentumConstants<T>::MomentumConstants;
  constexpr void operator()(T& p, T g, T* state) const {
    state[0] = this->momentum * state[0] - this->rate * (g + this->decay * p);
    p += state[0];
  }
};
template <class T>
struct UpdateStep<Nesterov, T> : MomentumConstants<T> {
  using MomentumConstants<T>::MomentumConstants;
  constexpr void operator()(T& p, T g, T* state) const {
    const T descent = this->rate * (g + this->decay * p);
    state[0] = this->momentum * state[0] - descent;
    p += this->momentum * state[0] - descent;
  }
};

template <class T>
struct UpdateStep<Adagrad, T> {
  constexpr explicit UpdateStep(const Adagrad& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate / (1 + static_cast<double>(rule.step - 1) * rule.learning_rate_decay))),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)),
        initial(static_cast<T>(rule.initial_accumulator)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = (state[0] == 0 ? initial : state[0]) + g * g;
    p -= rate * g / (std::sqrt(state[0]) + epsilon);
  }
  T rate, epsilon, decay, initial;
};

template <class T>
struct UpdateStep<RmsProp, T> {
  constexpr explicit UpdateStep(const RmsProp& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        kept(static_cast<T>(rule.decay)),
        added(static_cast<T>(1 - rule.decay)),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept * state[0] + added * g * g;
    p -= rate * g / (std::sqrt(state[0]) + epsilon);
  }
  T rate, kept, added, epsilon, decay;
};

/// RmsProp with momentum, centered, or both.
template <class Rule, class T>
struct RmsPropVariant {
  static constexpr bool kIsCentered = Rule::kState[1] == "a";
  static constexpr bool kHasMomentum = requires(Rule rule) { rule.momentum; };

  constexpr explicit RmsPropVariant(const Rule& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        kept(static_cast<T>(rule.decay)),
        added(static_cast<T>(1 - rule.decay)),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)) {
    if constexpr (kHasMomentum) momentum = static_cast<T>(rule.momentum);
  }
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept * state[0] + added * g * g;
    T variance = state[0];
    if constexpr (kIsCentered) {
      state[1] += added * (g - state[1]);
      variance -= state[1] * state[1];
      variance = variance < 0 ? 0 : variance;
    }
    const T change = g / (std::sqrt(variance) + epsilon);
    if constexpr (kHasMomentum) {
      T& buffer = state[Rule::kState.size() - 1];
      buffer = momentum * buffer + change;
      p -= rate * buffer;
    } else {
      p -= rate * change;
    }
  }
  T rate, kept, added, epsilon, decay, momentum = 0;
};
template <class T>
struct UpdateStep<RmsPropMomentum, T> : RmsPropVariant<RmsPropMomentum, T> {
  using RmsPropVariant<RmsPropMomentum, T>::RmsPropVariant;
};
template <class T>
struct UpdateStep<CenteredRmsProp, T> : RmsPropVariant<CenteredRmsProp, T> {
  using RmsPropVariant<CenteredRmsProp, T>::RmsPropVariant;
};
template <class T>
struct UpdateStep<CenteredRmsPropMomentum, T> : RmsPropVariant<CenteredRmsPropMomentum, T> {
  using RmsPropVariant<CenteredRmsPropMomentum, T>::RmsPropVariant;
};

template <class T>
struct UpdateStep<Adadelta, T> {
  constexpr explicit UpdateStep(const Adadelta& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        kept(static_cast<T>(rule.decay)),
        added(static_cast<T>(1 - rule.decay)),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept * state[0] + added * g * g;
    const T change = std::sqrt(state[1] + epsilon) / std::sqrt(state[0] + epsilon) * g;
    state[1] = kept * state[1] + added * change * change;
    p -= rate * change;
  }
  T rate, kept, added, epsilon, decay;
};

/// What rules with two averages have in common: in Adam, m and v.
template <class T>
struct TwoAverages {
  constexpr explicit TwoAverages(const auto& rule) noexcept
      : kept1(static_cast<T>(rule.beta1)),
        added1(static_cast<T>(1 - rule.beta1)),
        kept2(static_cast<T>(rule.beta2)),
        added2(static_cast<T>(1 - rule.beta2)),
        decay(static_cast<T>(rule.weight_decay)),
        kept(static_cast<T>(1 - rule.learning_rate * rule.decoupled_weight_decay)) {}
  /// The averages of the gradient and of its square.
  constexpr void add(T g, T* state) const {
    state[0] = kept1 * state[0] + added1 * g;
    state[1] = kept2 * state[1] + added2 * g * g;
  }
  T kept1, added1, kept2, added2, decay, kept;
};

/// Adam and AmsGrad.
template <class Rule, class T>
struct AdamVariant {
  constexpr explicit AdamVariant(const Rule& rule)
      : rate(static_cast<T>(rule.learning_rate / (1 - power(rule.beta1, rule.step)))),
        correction2(static_cast<T>(1 / std::sqrt(1 - power(rule.beta2, rule.step)))),
        epsilon(static_cast<T>(rule.epsilon)),
        averages(rule) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += averages.decay * p;
    averages.add(g, state);
    T square = state[1];
    if constexpr (Rule::kState.size() == 3) square = state[2] = state[2] < state[1] ? state[1] : state[2];
    p = averages.kept * p - rate * state[0] / (std::sqrt(square) * correction2 + epsilon);
  }
  T rate, correction2, epsilon;
  TwoAverages<T> averages;
};
template <class T>
struct UpdateStep<Adam, T> : AdamVariant<Adam, T> {
  using AdamVariant<Adam, T>::AdamVariant;
};
template <class T>
struct UpdateStep<AmsGrad, T> : AdamVariant<AmsGrad, T> {
  using AdamVariant<AmsGrad, T>::AdamVariant;
};

/// The momenta of NAdam in a step: f(step), f(step + 1) and F(step) of its formula.
struct NAdamMomenta {
  constexpr explicit NAdamMomenta(const NAdam& rule) {
    const double factor = std::pow(0.96, rule.momentum_decay);
    double powered = 1;
    for (std::int64_t i = 1; i <= rule.step && product > kNegligible; ++i) {
      powered *= factor;
      product *= rule.beta1 * (1 - 0.5 * powered);
    }
    now = rule.beta1 * (1 - 0.5 * power(factor, rule.step));
    next = rule.beta1 * (1 - 0.5 * power(factor, rule.step + 1));
  }
  static constexpr double kNegligible = 1e-20;  // 1 minus this is 1
  double now = 0, next = 0, product = 1;
};

template <class T>
struct UpdateStep<NAdam, T> {
  constexpr explicit UpdateStep(const NAdam& rule) : UpdateStep(rule, NAdamMomenta(rule)) {}
  constexpr UpdateStep(const NAdam& rule, const NAdamMomenta& momenta)
      : rate_g(static_cast<T>(rule.learning_rate * (1 - momenta.now) / (1 - momenta.product))),
        rate_m(static_cast<T>(rule.learning_rate * momenta.next / (1 - momenta.product * momenta.next))),
        correction2(static_cast<T>(1 / std::sqrt(1 - power(rule.beta2, rule.step)))),
        epsilon(static_cast<T>(rule.epsilon)),
        averages(rule) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += averages.decay * p;
    averages.add(g, state);
    p = averages.kept * p - (rate_g * g + rate_m * state[0]) / (std::sqrt(state[1]) * correction2 + epsilon);
  }
  T rate_g, rate_m, correction2, epsilon;
  TwoAverages<T> averages;
};

template <class T>
struct UpdateStep<RAdam, T> {
  constexpr explicit UpdateStep(const RAdam& rule)
      : rate(static_cast<T>(rule.learning_rate / (1 - power(rule.beta1, rule.step)))),
        divisor_root(0),
        divisor_plus(1),
        averages(rule) {
    const double correction = 1 - power(rule.beta2, rule.step);
    const double most = 2 / (1 - rule.beta2) - 1;
    const double length = most - 2 * static_cast<double>(rule.step) * (1 - correction) / correction;
    if (length <= kShort) return;
    const double rectified =
        std::sqrt(correction * (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    rate = static_cast<T>(rule.learning_rate / (1 - power(rule.beta1, rule.step)) * rectified);
    divisor_root = 1;
    divisor_plus = static_cast<T>(rule.epsilon);
  }
  constexpr void operator()(T& p, T g, T* state) const {
    g += averages.decay * p;
    averages.add(g, state);
    p = averages.kept * p - rate * state[0] / (std::sqrt(state[1]) * divisor_root + divisor_plus);
  }
  static constexpr double kShort = 5;
  T rate, divisor_root, divisor_plus;
  TwoAverages<T> averages;
};

template <class T>
struct UpdateStep<Adamax, T> {
  constexpr explicit UpdateStep(const Adamax& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate / (1 - power(rule.beta1, rule.step)))),
        kept1(static_cast<T>(rule.beta1)),
        added1(static_cast<T>(1 - rule.beta1)),
        kept2(static_cast<T>(rule.beta2)),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept1 * state[0] + added1 * g;
    const T before = kept2 * state[1];
    const T now = (g < 0 ? -g : g) + epsilon;
    state[1] = before < now ? now : before;
    p -= rate * state[0] / state[1];
  }
  T rate, kept1, added1, kept2, epsilon, decay;
};

template <class T>
struct UpdateStep<Lion, T> {
  constexpr explicit UpdateStep(const Lion& rule) noexcept : rate(static_cast<T>(rule.learning_rate)), averages(rule) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += averages.decay * p;
    const T direction = averages.kept1 * state[0] + averages.added1 * g;
    // Two selections of constants, because the compiler makes vector code of them.
    const T above = direction > 0 ? T{1} : T{0};
    const T below = direction < 0 ? T{1} : T{0};
    p = averages.kept * p - rate * (above - below + 0 * direction);  // not finite if the direction is not
    state[0] = averages.kept2 * state[0] + averages.added2 * g;
  }
  T rate;
  TwoAverages<T> averages;
};

template <class T>
struct UpdateStep<MovingAverage, T> {
  constexpr explicit UpdateStep(const MovingAverage& rule) noexcept : rate(static_cast<T>(rule.learning_rate)) {}
  constexpr void operator()(T& p, T g, T*) const { p += rate * (g - p); }
  T rate;
};

/// Calls f(std::type_identity<Rule>()) for the rule of this kind.
template <class F>
void with_rule_type(UpdateKind kind, F&& f) {
  [&]<class... Rules>(RuleList<Rules...>) {
    static_cast<void>(((UpdateKindOf<Rules>::value == kind ? (f(std::type_identity<Rules>()), true) : false) || ...));
  }(AllRules());
}

}  // namespace syncrun::detail::arrays
