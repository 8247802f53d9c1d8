// Update rules in bodies: those that torch.optim does not have, and wrong uses. torch_optim_test.cpp has the other rules.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/on_workers.hpp"
#include "tests/support/velocity_rules.hpp"

namespace {

class UpdateRule : public OnWorkers {};
INSTANTIATE_ON_WORKERS(UpdateRule, 2);

template <class Rule, class T>
void one_step(sr::CpuWorker& worker, Rule rule, sr::Broadcast<const T, 1> gradient, sr::Local<T, 1> params,
              sr::Local<T, 1> v) {
  sr::update(worker, rule, params, gradient, v);
}

TEST_P(UpdateRule, OfAVelocityIsThatOfItsPaper) {
  const auto f = [&]<class Rule, class T>() { return session().function(one_step<Rule, T>); };
  velocity_rules::expect_all(session(), f);
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
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::DeviceScalar<sr::Adam> adam, sr::Local<double, 1> params, sr::Local<double, 1> m,
         sr::Local<double, 1> v) { sr::update(worker, adam, params, std::array{0.5}, m, v); });
  const std::vector<double> one{1};
  const auto params = session().shared("params", one);
  const auto m = session().shared("m", one);
  const auto v = session().shared("v", one);
  EXPECT_ERROR(f(sr::Adam{.learning_rate = -1, .step = 1}, params, m, v), sr::ErrorKind::function,
               "adam: learning_rate");
  EXPECT_ERROR(f(sr::Adam{}, params, m, v), sr::ErrorKind::function,
               "adam: step is the number of this update, from 1, got 0");
  EXPECT_EQ(params.get(0)[0], 1);
}

}  // namespace
