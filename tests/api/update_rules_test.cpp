// Update rules in bodies. The tests compare with numbers computed beforehand (update_reference.py), and use the rules
// wrongly.

#include <gtest/gtest.h>

#include "tests/api/update_reference.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace reference = update_reference;

class UpdateRule : public OnWorkers {};
INSTANTIATE_ON_WORKERS(UpdateRule, 2);

template <class Rule>
Rule at_step(Rule rule, std::int64_t step) {
  if constexpr (requires { rule.step; }) rule.step = step;
  return rule;
}

/// Calls sr::update with as many state vectors as the rule has.
template <class Rule, class Worker, class Given, class T>
void update_with(Worker& worker, const Given& rule, const sr::Local<T, 1>& params, std::span<const T> gradient,
                 const sr::Local<T, 1>& first, const sr::Local<T, 1>& second) {
  constexpr std::size_t kStates = Rule::kState.size();
  if constexpr (kStates == 0) sr::update(worker, rule, params, gradient);
  else if constexpr (kStates == 1) sr::update(worker, rule, params, gradient, first);
  else sr::update(worker, rule, params, gradient, first, second);
}

template <class Rule, class T>
void all_steps(sr::CpuWorker& worker, Rule rule, sr::Broadcast<const T, 2> gradients, sr::Local<T, 1> params,
               sr::Local<T, 1> first, sr::Local<T, 1> second) {
  for (std::int64_t t = 0; t < gradients.rows(); ++t) {
    update_with<Rule>(worker, at_step(rule, t + 1), params, std::span<const T>(gradients[t].span()), first, second);
  }
}

/// Takes one step. The master passes the rule with its hyperparameters and the number of the step.
template <class Rule, class T>
void one_step(sr::CpuWorker& worker, sr::DeviceScalar<Rule> rule, sr::Broadcast<const T, 1> gradient,
              sr::Local<T, 1> params, sr::Local<T, 1> first, sr::Local<T, 1> second) {
  update_with<Rule>(worker, rule, params, std::span<const T>(gradient), first, second);
}

class Variables {
 public:
  template <class T>
  struct Of {
    sr::Shared<T, 1> params, first, second;
  };
  template <class T>
  static Of<T> of(sr::Session& session, const std::vector<T>& start) {
    Of<T> made{session.shared<T, 1>("params"), session.shared<T, 1>("first"), session.shared<T, 1>("second")};
    made.params.broadcast(start);
    made.first.broadcast(std::vector<T>(start.size()));
    made.second.broadcast(std::vector<T>(start.size()));
    return made;
  }
};

template <class T>
std::vector<T> reference_start() {
  std::vector<T> start;
  for (int i = 0; i < reference::kParameters; ++i) start.push_back(static_cast<T>(reference::start(i)));
  return start;
}

template <class T>
std::vector<T> reference_gradients() {
  std::vector<T> gradients;
  for (int t = 1; t <= reference::kSteps; ++t) {
    for (int i = 0; i < reference::kParameters; ++i) gradients.push_back(static_cast<T>(reference::gradient(t, i)));
  }
  return gradients;
}

template <class T, class Rule>
void expect_reference(sr::Session& session, const Rule& rule, const reference::Values& expected) {
  const double tolerance = std::is_same_v<T, double> ? 1e-14 : 1e-6;
  const auto gradients = session.data(reference_gradients<T>(), sr::Shape{reference::kSteps, reference::kParameters});
  const auto variables = Variables::of<T>(session, reference_start<T>());
  session.function(all_steps<Rule, T>)(rule, gradients, variables.params, variables.first, variables.second);
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const auto params = variables.params.get(rank);
    for (int i = 0; i < reference::kParameters; ++i) {
      EXPECT_NEAR(params[i], expected[static_cast<std::size_t>(i)], tolerance) << "parameter " << i;
    }
  }
}

template <class Rule>
void expect_reference(sr::Session& session, const char* name, const Rule& rule, const reference::Values& expected) {
  SCOPED_TRACE(name);
  expect_reference<double>(session, rule, expected);
  expect_reference<float>(session, rule, expected);
}

TEST_P(UpdateRule, GivesWhatItsPaperSays) {
  expect_reference(session(), "sgd", sr::Sgd{.learning_rate = 0.1}, reference::kSgd);
  expect_reference(session(), "sgd", sr::Sgd{.learning_rate = 0.1, .weight_decay = 0.01}, reference::kSgdDecayed);
  expect_reference(session(), "momentum", sr::Momentum{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                   reference::kMomentum);
  expect_reference(session(), "nesterov", sr::Nesterov{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                   reference::kNesterov);
  expect_reference(session(), "adagrad", sr::Adagrad{.learning_rate = 0.1, .weight_decay = 0.01}, reference::kAdagrad);
  expect_reference(session(), "rmsprop", sr::RmsProp{.learning_rate = 0.01, .weight_decay = 0.01}, reference::kRmsProp);
  expect_reference(session(), "adadelta", sr::Adadelta{.weight_decay = 0.01}, reference::kAdadelta);
  expect_reference(session(), "adam", sr::Adam{.learning_rate = 0.01}, reference::kAdam);
  expect_reference(session(), "adam, decayed",
                   sr::Adam{.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1},
                   reference::kAdamDecayed);
  expect_reference(session(), "adamw", sr::Adam{.learning_rate = 0.01, .decoupled_weight_decay = 0.1},
                   reference::kAdamW);
  expect_reference(session(), "adamax", sr::Adamax{.learning_rate = 0.02, .weight_decay = 0.01}, reference::kAdamax);
}

// Updates a part of a vector that may begin anywhere. The rest stays as it is.
TEST_P(UpdateRule, TakesAnyPartOfAVector) {
  const auto f =
      session().function([](sr::CpuWorker& worker, sr::Local<float, 1> params, std::int64_t begin, std::int64_t count) {
        const std::vector<float> ones(static_cast<std::size_t>(count), 1.0F);
        sr::update(worker, sr::Sgd{.learning_rate = 1},
                   params.span().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), ones);
      });
  auto params = session().shared<float, 1>("params");
  for (const auto& [begin, count] : {std::pair{0, 0}, {3, 1}, {1, 7}, {5, 20}, {29, 1}}) {
    params.broadcast(std::vector<float>(30, 2.0F));
    f(params, begin, count);
    const auto after = params.get(world_size() - 1);
    for (int i = 0; i < 30; ++i) EXPECT_EQ(after[i], i >= begin && i < begin + count ? 1.0F : 2.0F);
  }
}

TEST_P(UpdateRule, HasStateOfItsOwnMaking) {
  auto weights = session().shared<float, 1>("weights");
  EXPECT_ERROR(sr::state_for<sr::Adam>(session(), weights), sr::ErrorKind::usage, "'weights' has no shape yet");
  weights.set(0, std::vector<float>(5), {5});
  weights.set(world_size() - 1, std::vector<float>(7), {7});
  const auto [m, v] = sr::state_for<sr::Adam>(session(), weights);
  EXPECT_EQ(m.name(), "weights.m");
  EXPECT_EQ(v.name(), "weights.v");
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto own = m.get(rank).to_vector();
    EXPECT_EQ(own, std::vector<float>(static_cast<std::size_t>(weights.shape(rank)[0])));
  }
  EXPECT_EQ(sr::state_for<sr::Sgd>(session(), weights).size(), 0U);
}

TEST_P(UpdateRule, RefusesVectorsOfOtherLengths) {
  const auto f = session().function([](sr::CpuWorker& worker, std::int64_t gradient, std::int64_t m, std::int64_t v) {
    std::vector<double> params(4);
    const std::vector<double> g(static_cast<std::size_t>(gradient));
    std::vector<double> first(static_cast<std::size_t>(m));
    std::vector<double> second(static_cast<std::size_t>(v));
    sr::update(worker, sr::Adam{.step = 1}, params, g, first, second);
  });
  f(4, 4, 4);
  EXPECT_ERROR(f(3, 4, 4), sr::ErrorKind::function, "gradient has 3 elements, but params has 4");
  EXPECT_ERROR(f(4, 5, 4), sr::ErrorKind::function, "state vector 0 (m) has 5 elements, but params has 4");
  EXPECT_ERROR(f(4, 4, 8), sr::ErrorKind::function, "state vector 1 (v) has 8 elements, but params has 4");
}

TEST_P(UpdateRule, RefusesHyperparametersThatMakeNoSense) {
  const auto f = session().function(one_step<sr::Adam, double>);
  const auto variables = Variables::of<double>(session(), {1});
  const auto gradient = session().data(std::vector<double>{0.5});
  const auto call = [&](const sr::Adam& adam) {
    f(adam, gradient, variables.params, variables.first, variables.second);
  };
  EXPECT_ERROR(call({.learning_rate = -1, .step = 1}), sr::ErrorKind::function, "adam: learning_rate");
  EXPECT_ERROR(call({}), sr::ErrorKind::function, "adam: step is the number of this update, from 1, got 0");
  EXPECT_EQ(variables.params.get(0)[0], 1);
}

}  // namespace
