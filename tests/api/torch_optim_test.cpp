// Train steps against numbers of Python's torch.optim (tests/support/torch_optim.py).

#include <gtest/gtest.h>

#include <string>

#include "tests/support/on_workers.hpp"
#include "tests/support/torch_optim_cases.hpp"

namespace {

class TorchOptim : public OnWorkers {};
INSTANTIATE_ON_WORKERS(TorchOptim, 1, 2, 3);

template <class T>
void expect_all_rules(sr::Session& session) {
  torch_optim::for_each_case(
      [&]<class Rule>(const char* name, const Rule& rule, const auto& expected, const auto& own) {
        for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
          SCOPED_TRACE(std::string(name) + (form == sr::StepForm::sharded ? ", sharded" : ""));
          const auto make = [&](const auto& weights, const auto& options) {
            return sr::train_step<Rule>(session, torch_optim::gradient_in_double<T>, weights, options);
          };
          torch_optim::expect_as_torch<T>(session, rule, expected, own, form, torch_optim::kTolerance<T, Rule>, make);
        }
      });
}

TEST_P(TorchOptim, GivesTheParametersOfTheSameRuleIn64Bits) { expect_all_rules<double>(session()); }
TEST_P(TorchOptim, GivesTheParametersOfTheSameRuleIn32Bits) { expect_all_rules<float>(session()); }

}  // namespace
