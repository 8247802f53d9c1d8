#pragma once

// Rules that torch.optim does not have: the learning rate is in their velocity. Their steps are computed here serially, by
// the equations that update_rules.hpp names.

#include <gtest/gtest.h>

#include <cstddef>
#include <syncrun/syncrun.hpp>
#include <type_traits>
#include <vector>

namespace velocity_rules {

/// Takes steps with a learning rate that changes. `f(rule, gradient, params, v)` takes one on all ranks.
template <class Rule, class T, class Function>
void expect_serial_steps(syncrun::Session& session, const Function& f) {
  const std::vector<double> start{-0.75, 0, 0.75, -0.25, 0.5};
  std::vector<double> expected = start;
  std::vector<double> velocity(start.size());
  const auto params = session.shared("params", std::vector<T>(start.begin(), start.end()));
  const auto v = session.shared("v", std::vector<T>(start.size()));
  for (int step = 0; step < 8; ++step) {
    const Rule rule{.learning_rate = step < 4 ? 0.1 : 0.05, .momentum = 0.9, .weight_decay = 0.01};
    std::vector<T> gradient;
    for (std::size_t i = 0; i < start.size(); ++i) {
      gradient.push_back(static_cast<T>(static_cast<int>(7 * i + 5 * static_cast<std::size_t>(step)) % 11 - 5) / 8);
      const double change = rule.learning_rate * (static_cast<double>(gradient[i]) + rule.weight_decay * expected[i]);
      velocity[i] = rule.momentum * velocity[i] - change;
      expected[i] += std::is_same_v<Rule, syncrun::Nesterov> ? rule.momentum * velocity[i] - change : velocity[i];
    }
    f(rule, session.data(gradient), params, v);
  }
  constexpr double kTolerance = sizeof(T) == sizeof(double) ? 1e-13 : 2e-6;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    for (std::size_t i = 0; i < start.size(); ++i)
      EXPECT_NEAR(params.get(rank)[i], expected[i], kTolerance) << "parameter " << i;
  }
}

/// `make<Rule, T>()` makes the function.
template <class Make>
void expect_all(syncrun::Session& session, const Make& make) {
  const auto expect = [&]<class Rule, class T>() {
    expect_serial_steps<Rule, T>(session, make.template operator()<Rule, T>());
  };
  expect.template operator()<syncrun::Momentum, double>();
  expect.template operator()<syncrun::Momentum, float>();
  expect.template operator()<syncrun::Nesterov, double>();
  expect.template operator()<syncrun::Nesterov, float>();
}

}  // namespace velocity_rules
