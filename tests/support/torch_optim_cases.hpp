#pragma once

// Train steps with the rules that torch_optim.py has recorded, on any kind of device.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <syncrun/syncrun.hpp>
#include <type_traits>
#include <vector>

#include "tests/support/torch_optim.hpp"

namespace torch_optim {

namespace sr = syncrun;

using Values = std::array<double, kColumns>;

/// Calls use(name, rule, expected parameters, what the last group has of its own) for each case. `rule` has the decay of
/// the case.
template <class Use>
void for_each_case(Use&& use) {
  const sr::ParameterGroup none{};
  const sr::ParameterGroup momentum{.momentum = 0.7};
  const sr::ParameterGroup betas{.beta1 = 0.8, .beta2 = 0.95};
  use("SGD", sr::Sgd{.learning_rate = 0.1, .weight_decay = 0.01}, kSgdPlain, none);
  use("SGD, momentum", sr::SgdMomentum{.learning_rate = 0.1, .weight_decay = 0.01}, kSgdMomentum, momentum);
  use("SGD, dampening", sr::SgdMomentum{.learning_rate = 0.1, .dampening = 0.3, .weight_decay = 0.01}, kSgdDampened,
      none);
  use("SGD, Nesterov", sr::SgdMomentum{.learning_rate = 0.1, .weight_decay = 0.01, .nesterov = true}, kSgdNesterov,
      momentum);
  use("Adagrad",
      sr::Adagrad{.learning_rate = 0.1, .weight_decay = 0.01, .learning_rate_decay = 0.01, .initial_accumulator = 0.25},
      kAdagrad, none);
  use("RMSprop", sr::RmsProp{.learning_rate = 0.02, .decay = 0.95, .weight_decay = 0.01}, kRmsProp, none);
  use("RMSprop, momentum", sr::RmsPropMomentum{.learning_rate = 0.005, .decay = 0.95, .weight_decay = 0.01},
      kRmsPropMomentum, momentum);
  use("RMSprop, centered", sr::CenteredRmsProp{.learning_rate = 0.005, .decay = 0.95, .weight_decay = 0.01},
      kRmsPropCentered, none);
  use("RMSprop, centered, momentum",
      sr::CenteredRmsPropMomentum{.learning_rate = 0.002, .decay = 0.95, .weight_decay = 0.01},
      kRmsPropCenteredMomentum, momentum);
  use("Adadelta", sr::Adadelta{.decay = 0.9, .weight_decay = 0.01}, kAdadelta, none);
  use("Adam", sr::Adam{.learning_rate = 0.02, .weight_decay = 0.01}, kAdam, betas);
  use("AdamW", sr::Adam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1}, kAdamW, betas);
  use("Adam, amsgrad", sr::AmsGrad{.learning_rate = 0.02, .weight_decay = 0.01}, kAmsGrad, betas);
  use("AdamW, amsgrad", sr::AmsGrad{.learning_rate = 0.02, .beta2 = 0.9, .decoupled_weight_decay = 0.1}, kAmsGradW,
      none);
  use("NAdam", sr::NAdam{.learning_rate = 0.02, .weight_decay = 0.01}, kNAdam, betas);
  use("NAdam, decoupled", sr::NAdam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1}, kNAdamW, none);
  use("RAdam", sr::RAdam{.learning_rate = 0.02, .weight_decay = 0.01}, kRAdam, betas);
  use("RAdam, decoupled", sr::RAdam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1}, kRAdamW, none);
  use("Adamax", sr::Adamax{.learning_rate = 0.02, .weight_decay = 0.01}, kAdamax, betas);
  use("Lion", sr::Lion{.learning_rate = 0.01, .decoupled_weight_decay = 0.1}, kLion, betas);
}

/// The three groups of torch_optim.py. Elements in no group are the second.
inline std::vector<sr::ParameterGroup> groups_with(sr::ParameterGroup last) {
  last.begin = kColumns / 3 * 2;
  last.end = kColumns;
  last.weight_decay = 2;
  return {{.begin = 0, .end = kColumns / 3, .learning_rate = 0.5, .weight_decay = 0}, last};
}

template <class T>
struct Rows {
  explicit Rows(sr::Session& session) : x(session.data<T, 2>({kRows, kColumns})), y(session.data<T, 1>({kRows})) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) x.write()(i, j) = static_cast<T>(torch_optim::x(i, j));
      y.write()[i] = static_cast<T>(torch_optim::y(i));
    }
  }
  sr::Data<T, 2> x;
  sr::Data<T, 1> y;
};

/// Least squares as in least_squares.hpp, computed in double, so that only the rules round to T.
template <class T>
sr::Avg<double> gradient_in_double(sr::Scattered<const T, 2> x, sr::Scattered<const T, 1> y, sr::Local<T, 1> params,
                                   sr::Local<T, 1> gradient) {
  std::vector<double> sums(static_cast<std::size_t>(params.size()));
  double loss = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    double error = -static_cast<double>(y[row]);
    for (std::int64_t i = 0; i < params.size(); ++i)
      error += static_cast<double>(x(row, i)) * static_cast<double>(params[i]);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += 2 * error * static_cast<double>(x(row, static_cast<std::int64_t>(i)));
    loss += error * error;
  }
  const auto rows = static_cast<double>(x.rows());
  for (std::int64_t i = 0; i < params.size(); ++i)
    gradient[i] = static_cast<T>(sums[static_cast<std::size_t>(i)] / rows);
  return loss / rows;
}

/// For difference(). The subtraction under the root of centered RMSprop leaves fewer correct digits: with float32, PyTorch's
/// own result is 9e-7 away from that with float64.
template <class T, class Rule>
inline constexpr double kTolerance = std::is_same_v<T, double> ? 1e-12 : 1e-6;
template <>
inline constexpr double kTolerance<float, sr::CenteredRmsProp> = 2e-6;
template <>
inline constexpr double kTolerance<float, sr::CenteredRmsPropMomentum> = 2e-6;

/// The norm of the difference, as a fraction of the norm of what is expected.
template <class T>
double difference(const std::vector<T>& got, std::span<const double> expected) {
  double squares = 0;
  double off = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares += expected[i] * expected[i];
    off += std::pow(static_cast<double>(got[i]) - expected[i], 2);
  }
  return std::sqrt(off / squares);
}

/// The parameters with which training begins.
template <class T>
sr::Shared<T, 1> starting_weights(sr::Session& session) {
  std::vector<T> from;
  for (int j = 0; j < kColumns; ++j) from.push_back(static_cast<T>(start(j)));
  auto weights = session.shared<T, 1>();
  weights.broadcast(from);
  return weights;
}

/// Trains as torch_optim.py does, in 1 to 3 slices. Calls after_step() after each step.
template <class T, class Rule, class Step, class After>
void train(sr::Session& session, const Rule& rule, Step& step, After&& after_step) {
  const Rows<T> rows(session);
  for (int i = 0; i < kSteps; ++i) {
    Rule now = rule;
    now.learning_rate *= sr::cosine_restarts(i, {.first = 15, .growth = 2});
    step(rows.x, rows.y, now, {.slices = 1 + i % 3});
    after_step();
  }
}

template <class T>
void expect_near(const sr::Session& session, const sr::Shared<T, 1>& weights, const Values& expected,
                 double tolerance) {
  for (int rank = 0; rank < session.world_size(); ++rank)
    EXPECT_LE(difference(weights.get(rank).to_vector(), expected), tolerance) << "on rank " << rank;
}

/// `make(weights, options)` makes the train step of a Rule. `tolerance` is for the norm of the difference as a fraction of
/// the norm of the parameters.
template <class T, class Rule, class Make>
void expect_as_torch(sr::Session& session, const Rule& rule, const Values& expected, const sr::ParameterGroup& own,
                     sr::StepForm form, double tolerance, Make&& make) {
  const auto weights = starting_weights<T>(session);
  auto step = make(weights, sr::TrainStepOptions{.form = form, .groups = groups_with(own), .clip_norm = kClipNorm});
  train<T>(session, rule, step, [] {});
  expect_near(session, weights, expected, tolerance);
}

}  // namespace torch_optim
