#include "common/arrays/update.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <syncrun/error.hpp>
#include <vector>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

template <class Pair>
class UpdateOfElements : public testing::Test {};

template <class R, class E>
struct RuleAndType {
  using Rule = R;
  using T = E;
};
template <class List>
struct PairsOf;
template <class... Rules>
struct PairsOf<RuleList<Rules...>> {
  using type = testing::Types<RuleAndType<Rules, float>..., RuleAndType<Rules, double>...>;
};
using Pairs = PairsOf<AllRules>::type;
TYPED_TEST_SUITE(UpdateOfElements, Pairs);

template <class Rule>
Rule third_step() {
  Rule rule{};
  rule.weight_decay = 0.01;
  if constexpr (requires { rule.step; }) rule.step = 3;
  return rule;
}

template <class T>
struct Vectors {
  explicit Vectors(std::size_t elements)
      : params(elements), gradient(elements), first(elements), second(elements), third(elements) {
    for (std::size_t i = 0; i < elements; ++i) {
      params[i] = std::sin(static_cast<T>(i));
      gradient[i] = std::cos(static_cast<T>(i) * 3);
      first[i] = static_cast<T>(i % 5) / 8;
      second[i] = static_cast<T>(i % 3) / 4;
      third[i] = static_cast<T>(i % 2) / 2;
    }
  }
  std::vector<T> params, gradient, first, second, third;

  template <class Rule>
  void update(const Rule& rule, std::size_t begin, std::size_t end) {
    arrays::update_elements({.kind = UpdateKindOf<Rule>::value,
                             .dtype = dtype_of<T>,
                             .rule = &rule,
                             .place = UpdateWork::RulePlace::host,
                             .params = params.data() + begin,
                             .gradient = gradient.data() + begin,
                             .state = {first.data() + begin, second.data() + begin, third.data() + begin},
                             .elements = end - begin});
  }
};

// Vector code and the code for the remaining elements compute the same bits. So the result does not depend on the
// length of the vectors, or on where they begin.
TYPED_TEST(UpdateOfElements, GivesTheSameBitsForAnyDivisionOfTheElements) {
  using T = typename TypeParam::T;
  const auto rule = third_step<typename TypeParam::Rule>();
  for (const std::size_t elements : {1UL, 2UL, 7UL, 8UL, 33UL, 1000UL}) {
    Vectors<T> whole(elements);
    whole.update(rule, 0, elements);
    for (const std::size_t piece : {1UL, 3UL, 5UL, 64UL}) {
      Vectors<T> pieces(elements);
      for (std::size_t at = 0; at < elements; at += piece) pieces.update(rule, at, std::min(at + piece, elements));
      EXPECT_EQ(pieces.params, whole.params) << elements << " elements, " << piece << " at a time";
      EXPECT_EQ(pieces.first, whole.first);
      EXPECT_EQ(pieces.second, whole.second);
      EXPECT_EQ(pieces.third, whole.third);
    }
  }
}

template <class Rule>
std::string complaint(const Rule& rule) {
  return test::error_text([&] { check_update_rule(UpdateKindOf<Rule>::value, &rule); }, ErrorKind::usage);
}

TEST(UpdateRules, AreRefusedByTheNameOfWhatMakesNoSense) {
  const double nan = std::nan("");
  EXPECT_EQ(complaint(Sgd{.learning_rate = -1}), "sgd: learning_rate is a finite number of at least 0, got -1");
  EXPECT_NE(complaint(Sgd{.learning_rate = nan}).find("learning_rate"), std::string::npos);
  EXPECT_NE(complaint(Sgd{.learning_rate = INFINITY}).find("learning_rate"), std::string::npos);
  EXPECT_NE(complaint(Sgd{.weight_decay = -0.1}).find("weight_decay"), std::string::npos);
  EXPECT_NE(complaint(Momentum{.momentum = 1}).find("momentum: momentum is from 0 to below 1"), std::string::npos);
  EXPECT_NE(complaint(Nesterov{.momentum = nan}).find("nesterov: momentum"), std::string::npos);
  EXPECT_NE(complaint(Adagrad{.epsilon = -1}).find("adagrad: epsilon"), std::string::npos);
  EXPECT_NE(complaint(RmsProp{.decay = 1.5}).find("rmsprop: decay"), std::string::npos);
  EXPECT_NE(complaint(Adadelta{.decay = -1}).find("adadelta: decay"), std::string::npos);
  EXPECT_NE(complaint(Adam{.beta1 = 1, .step = 1}).find("adam: beta1"), std::string::npos);
  EXPECT_NE(complaint(Adam{.beta2 = -1, .step = 1}).find("adam: beta2"), std::string::npos);
  EXPECT_NE(complaint(Adam{.decoupled_weight_decay = nan, .step = 1}).find("decoupled_weight_decay"),
            std::string::npos);
  EXPECT_EQ(complaint(Adam{}), "adam: step is the number of this update, from 1, got 0");
  EXPECT_EQ(complaint(Adamax{}), "adamax: step is the number of this update, from 1, got 0");
  EXPECT_NE(complaint(SgdMomentum{.dampening = 1}).find("sgd_momentum: dampening"), std::string::npos);
  EXPECT_EQ(
      complaint(SgdMomentum{.momentum = 0, .nesterov = true}),
      "sgd_momentum: nesterov requires a momentum above 0 and no dampening, got the momentum 0 and the dampening 0");
  EXPECT_NE(complaint(RmsPropMomentum{.momentum = 1}).find("rmsprop_momentum: momentum"), std::string::npos);
  EXPECT_NE(complaint(NAdam{.momentum_decay = -1, .step = 1}).find("nadam: momentum_decay"), std::string::npos);
  EXPECT_NE(complaint(Lion{.beta2 = 1}).find("lion: beta2"), std::string::npos);
  EXPECT_NE(complaint(RAdam{}).find("radam: step"), std::string::npos);
  EXPECT_NE(complaint(AmsGrad{}).find("amsgrad: step"), std::string::npos);
}

// In an own body, these rules need the number of the step only for what depends on it.
TEST(UpdateRules, NeedTheNumberOfTheStepOnlyIfTheyUseIt) {
  EXPECT_NE(complaint(SgdMomentum{.dampening = 0.5}).find("sgd_momentum: step"), std::string::npos);
  EXPECT_NE(complaint(Adagrad{.learning_rate_decay = 0.1}).find("adagrad: step"), std::string::npos);
  const SgdMomentum momentum;
  const Adagrad adagrad{.initial_accumulator = 0.1};
  check_update_rule(UpdateKind::sgd_momentum, &momentum);
  check_update_rule(UpdateKind::adagrad, &adagrad);
}

}  // namespace
}  // namespace syncrun::detail
