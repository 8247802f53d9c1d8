// Train steps against numbers of Python's torch.optim (tests/support/torch_optim.py).

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/on_workers.hpp"
#include "tests/support/torch_optim_cases.hpp"

namespace {

class TorchOptim : public OnWorkers {};
INSTANTIATE_ON_WORKERS(TorchOptim, 1, 2, 3);

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

/// The difference under the root of centered RMSprop has fewer correct digits. With float32, PyTorch's own result is 9e-7
/// away from that with float64.
template <class T, class Rule>
constexpr double kTolerance = std::is_same_v<T, double>                   ? 1e-12
                              : std::is_same_v<Rule, sr::CenteredRmsProp> ? 2e-6
                                                                          : 1e-6;

template <class T>
void expect_all_rules(sr::Session& session) {
  torch_optim::for_each_case(
      [&]<class Rule>(const char* name, const Rule& rule, const auto& expected, const auto& own) {
        for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
          SCOPED_TRACE(std::string(name) + (form == sr::StepForm::sharded ? ", sharded" : ""));
          const auto make = [&](const auto& weights, const auto& options) {
            return sr::train_step<Rule>(session, gradient_in_double<T>, weights, options);
          };
          torch_optim::expect_as_torch<T>(session, rule, expected, own, form, kTolerance<T, Rule>, make);
        }
      });
}

TEST_P(TorchOptim, GivesTheParametersOfTheSameRuleIn64Bits) { expect_all_rules<double>(session()); }
TEST_P(TorchOptim, GivesTheParametersOfTheSameRuleIn32Bits) { expect_all_rules<float>(session()); }

}  // namespace
