#pragma once

// The arithmetic of the update rules for one parameter. It is the same for every kind of device.
// syncrun/update_rules.hpp has the formulas and their sources. UpdateStep<Rule, T> contains the values that are the
// same for all parameters.

#include <cmath>
#include <cstdint>

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
struct UpdateStep<Momentum, T> {
  constexpr explicit UpdateStep(const Momentum& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        momentum(static_cast<T>(rule.momentum)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    state[0] = momentum * state[0] - rate * (g + decay * p);
    p += state[0];
  }
  T rate, momentum, decay;
};

template <class T>
struct UpdateStep<Nesterov, T> {
  constexpr explicit UpdateStep(const Nesterov& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        momentum(static_cast<T>(rule.momentum)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    const T descent = rate * (g + decay * p);
    state[0] = momentum * state[0] - descent;
    p += momentum * state[0] - descent;
  }
  T rate, momentum, decay;
};

template <class T>
struct UpdateStep<Adagrad, T> {
  constexpr explicit UpdateStep(const Adagrad& rule) noexcept
      : rate(static_cast<T>(rule.learning_rate)),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] += g * g;
    p -= rate * g / (std::sqrt(state[0]) + epsilon);
  }
  T rate, epsilon, decay;
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

template <class T>
struct UpdateStep<Adam, T> {
  constexpr explicit UpdateStep(const Adam& rule)
      : rate(static_cast<T>(rule.learning_rate / (1 - power(rule.beta1, rule.step)))),
        kept1(static_cast<T>(rule.beta1)),
        added1(static_cast<T>(1 - rule.beta1)),
        kept2(static_cast<T>(rule.beta2)),
        added2(static_cast<T>(1 - rule.beta2)),
        correction2(static_cast<T>(1 / std::sqrt(1 - power(rule.beta2, rule.step)))),
        epsilon(static_cast<T>(rule.epsilon)),
        decay(static_cast<T>(rule.weight_decay)),
        kept(static_cast<T>(1 - rule.learning_rate * rule.decoupled_weight_decay)) {}
  constexpr void operator()(T& p, T g, T* state) const {
    g += decay * p;
    state[0] = kept1 * state[0] + added1 * g;
    state[1] = kept2 * state[1] + added2 * g * g;
    p = kept * p - rate * state[0] / (std::sqrt(state[1]) * correction2 + epsilon);
  }
  T rate, kept1, added1, kept2, added2, correction2, epsilon, decay, kept;
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

}  // namespace syncrun::detail::arrays
