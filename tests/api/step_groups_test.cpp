// Train steps with groups of parameters, and with a clipped gradient. The tests compare with the same steps computed
// here, serially and in double.

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/least_squares.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using least_squares::loss_and_gradient;
using least_squares::problem;
using least_squares::Serial;

class StepGroups : public OnWorkers {};
INSTANTIATE_ON_WORKERS(StepGroups, 1, 3);

/// The gradient over all rows.
std::vector<double> gradient_of(const Serial& serial) {
  const auto columns = static_cast<std::size_t>(serial.columns);
  std::vector<double> gradient(columns);
  for (std::size_t row = 0; row < serial.y.size(); ++row) {
    double error = -serial.y[row];
    for (std::size_t i = 0; i < columns; ++i) error += serial.x[row * columns + i] * serial.params[i];
    for (std::size_t i = 0; i < columns; ++i)
      gradient[i] += 2 * error * serial.x[row * columns + i] / static_cast<double>(serial.y.size());
  }
  return gradient;
}

/// The factors of an element.
sr::ParameterGroup factors_of(const std::vector<sr::ParameterGroup>& groups, std::size_t i) {
  for (const auto& group : groups) {
    if (group.begin <= static_cast<std::int64_t>(i) && static_cast<std::int64_t>(i) < group.end) return group;
  }
  return {};
}

/// Takes one step of AdamW with groups and a clipped gradient. Returns the norm.
double take(Serial& serial, const sr::Adam& adam, const std::vector<sr::ParameterGroup>& groups, double clip_norm) {
  auto gradient = gradient_of(serial);
  double norm = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (factors_of(groups, i).learning_rate != 0) norm += gradient[i] * gradient[i];
  }
  norm = std::sqrt(norm);
  const double factor = clip_norm == 0 ? 1 : std::min(1.0, clip_norm / (norm + 1e-6));
  ++serial.step;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const auto group = factors_of(groups, i);
    if (group.learning_rate == 0) continue;
    const double rate = adam.learning_rate * group.learning_rate;
    const double g = gradient[i] * factor;
    serial.params[i] *= 1 - rate * adam.decoupled_weight_decay * group.weight_decay;
    serial.m[i] = adam.beta1 * serial.m[i] + (1 - adam.beta1) * g;
    serial.v[i] = adam.beta2 * serial.v[i] + (1 - adam.beta2) * g * g;
    const double root = std::sqrt(serial.v[i] / (1 - std::pow(adam.beta2, serial.step))) + adam.epsilon;
    serial.params[i] -= rate * serial.m[i] / (1 - std::pow(adam.beta1, serial.step)) / root;
  }
  return norm;
}

/// Ten steps in both forms, with and without slices, next to the serial ones.
void follow(sr::Session& session, std::int64_t columns, const std::vector<sr::ParameterGroup>& groups,
            double clip_norm) {
  constexpr std::int64_t kRows = 40;
  const sr::Adam adam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1};
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    Serial serial = problem(kRows, columns, 3);
    const auto x = session.data(serial.x, sr::Shape{kRows, columns});
    const auto y = session.data(serial.y);
    auto weights = session.shared<double, 1>();
    weights.broadcast(serial.params);
    auto step = sr::train_step<sr::Adam>(session, loss_and_gradient<double>, weights,
                                         {.form = form, .groups = groups, .clip_norm = clip_norm});
    for (std::int64_t i = 0; i < 10; ++i) {
      step(x, y, adam, {.slices = 1 + i % 3});
      const double norm = take(serial, adam, groups, clip_norm);
      if (clip_norm != 0) {
        EXPECT_NEAR(step.gradient_norm(), norm, 1e-12 * norm);
      }
    }
    for (int rank = 0; rank < session.world_size(); ++rank) {
      const auto found = weights.get(rank);
      for (std::int64_t i = 0; i < columns; ++i)
        ASSERT_NEAR(found[i], serial.params[static_cast<std::size_t>(i)], 1e-12) << "rank " << rank << " " << i;
    }
  }
}

TEST_P(StepGroups, HaveTheirOwnRatesAndDecays) {
  follow(session(), 17,
         {{.begin = 2, .end = 5, .learning_rate = 0.5},
          {.begin = 5, .end = 9, .weight_decay = 0},
          {.begin = 12, .end = 17, .learning_rate = 2, .weight_decay = 3}},
         0);
  follow(session(), 9'000, {{.begin = 100, .end = 8'900, .weight_decay = 0}}, 0);
}

TEST_P(StepGroups, ThatAreFrozenStayAsTheyAre) {
  follow(session(), 17, {{.begin = 0, .end = 6, .learning_rate = 0}, {.begin = 8, .end = 9, .learning_rate = 0}}, 0);
  follow(session(), 3, {{.begin = 0, .end = 3, .learning_rate = 0}}, 0);
}

TEST_P(StepGroups, TheNormOfTheGradientIsClipped) {
  follow(session(), 17, {}, 0.05);
  follow(session(), 17, {}, std::numeric_limits<double>::infinity());
  follow(session(), 2, {}, 0.1);
  follow(session(), 9'000, {{.begin = 100, .end = 8'900, .learning_rate = 0}}, 0.5);
}

TEST_P(StepGroups, WithoutFactorsChangeNoBit) {
  constexpr std::int64_t kRows = 30;
  const Serial serial = problem(kRows, 50, 3);
  const auto x = session().data(serial.x, sr::Shape{kRows, std::int64_t{50}});
  const auto y = session().data(serial.y);
  const auto train = [&](const sr::TrainStepOptions& options) {
    auto weights = session().shared<double, 1>();
    weights.broadcast(serial.params);
    auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights, options);
    for (int i = 0; i < 5; ++i) step(x, y, {.learning_rate = 0.02});
    return weights.get(0).to_vector();
  };
  EXPECT_EQ(train({.groups = {{.begin = 7, .end = 31}}, .clip_norm = 1e9}), train({}));
}

TEST_P(StepGroups, ANormThatIsNotFiniteIsAnErrorAndChangesNothing) {
  const Serial serial = problem(10, 4, 3);
  const auto x = session().data(serial.x, sr::Shape{std::int64_t{10}, std::int64_t{4}});
  const auto y = session().data(serial.y);
  auto weights = session().shared<double, 1>();
  const std::vector<double> huge(4, 1e300);
  weights.broadcast(huge);
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto step = sr::train_step<sr::Sgd>(session(), loss_and_gradient<double>, weights, {.form = form, .clip_norm = 1});
    EXPECT_ERROR(step(x, y, {}), sr::ErrorKind::function, "the norm of the gradient is inf, expected a finite number");
    EXPECT_EQ(weights.get(0).to_vector(), huge);
    EXPECT_EQ(step.steps(), 0);
    // The step goes on with other parameters.
    weights.broadcast(serial.params);
    step(x, y, {});
    EXPECT_NE(weights.get(0).to_vector(), serial.params);
    weights.broadcast(huge);
  }
}

TEST_P(StepGroups, ThatAreWrongAreRefused) {
  auto weights = session().shared<double, 1>();
  weights.broadcast(std::vector<double>(10));
  const auto make = [&](const std::vector<sr::ParameterGroup>& groups, double clip_norm = 0) {
    return sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights,
                                    {.groups = groups, .clip_norm = clip_norm});
  };
  EXPECT_ERROR(make({{.begin = 0, .end = 11}}), sr::ErrorKind::usage, "to 11 is not within the 10 parameters");
  EXPECT_ERROR(make({{.begin = -1, .end = 2}}), sr::ErrorKind::usage, "elements -1 to 2 is not within");
  EXPECT_ERROR(make({{.begin = 5, .end = 2}}), sr::ErrorKind::usage, "elements 5 to 2 is not within");
  EXPECT_ERROR(make({{.begin = 0, .end = 5}, {.begin = 4, .end = 6}}), sr::ErrorKind::usage,
               "a group begins at element 4, but the one before it ends at 5");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .learning_rate = -1}}), sr::ErrorKind::usage, "expected finite numbers");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .weight_decay = std::nan("")}}), sr::ErrorKind::usage, "finite numbers");
  EXPECT_ERROR(make({}, -1), sr::ErrorKind::usage, "clip_norm is -1");
  EXPECT_ERROR(make({}, std::nan("")), sr::ErrorKind::usage, "clip_norm is nan");
  EXPECT_ERROR(static_cast<void>(make({}).gradient_norm()), sr::ErrorKind::usage, "the step has no clip_norm");
}

}  // namespace
