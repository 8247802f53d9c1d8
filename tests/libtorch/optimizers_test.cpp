// Rules of Syncrun against LibTorch's optimizers, which train in this process (tests/api/torch_optim_test.cpp compares all
// rules with those of Python), and optimizers of Syncrun against those of Python.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include "tests/libtorch/matrix_trainer.hpp"
#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/torch_optim_cases.hpp"

namespace {

namespace optim = torch::optim;

template <class T>
torch::Tensor tensor_of(const std::vector<double>& values) {
  const auto type = std::is_same_v<T, double> ? torch::kFloat64 : torch::kFloat32;
  return torch::tensor(values, torch::kFloat64).to(type);
}

/// The parameters after the training of torch_optim.py with an optimizer of LibTorch, without hyperparameters of the last
/// group's own.
template <class T, class Optimizer, class Options>
torch_optim::Values train_alone(const Options& options) {
  constexpr int kRows = torch_optim::kRows;
  constexpr int kColumns = torch_optim::kColumns;
  std::vector<double> rows, targets, from;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) rows.push_back(torch_optim::x(i, j));
    targets.push_back(torch_optim::y(i));
  }
  for (int j = 0; j < kColumns; ++j) from.push_back(torch_optim::start(j));
  const torch::Tensor x = tensor_of<T>(rows).view({kRows, kColumns});
  const torch::Tensor y = tensor_of<T>(targets);

  std::vector<torch::Tensor> parts;
  std::vector<optim::OptimizerParamGroup> groups;
  constexpr std::array<double, 3> kRates{0.5, 1, 1};
  constexpr std::array<double, 3> kDecays{0, 1, 2};
  for (std::size_t i = 0; i < kRates.size(); ++i) {
    parts.push_back(tensor_of<T>(from).split(kColumns / 3)[i].clone().requires_grad_());
    auto own = std::make_unique<Options>(options);
    own->weight_decay(options.weight_decay() * kDecays[i]);
    groups.emplace_back(std::vector<torch::Tensor>{parts[i]}, std::move(own));
  }
  Optimizer optimizer(groups, options);
  for (int step = 0; step < torch_optim::kSteps; ++step) {
    for (std::size_t i = 0; i < kRates.size(); ++i) {
      optimizer.param_groups()[i].options().set_lr(options.get_lr() * kRates[i] *
                                                   sr::cosine_restarts(step, {.first = 15, .growth = 2}));
    }
    optimizer.zero_grad();
    (x.mv(torch::cat(parts)) - y).square().mean().backward();
    torch::nn::utils::clip_grad_norm_(parts, torch_optim::kClipNorm);
    optimizer.step();
  }
  torch_optim::Values after{};
  const torch::Tensor all = torch::cat(parts).to(torch::kFloat64);
  for (int j = 0; j < kColumns; ++j) after[static_cast<std::size_t>(j)] = all[j].item<double>();
  return after;
}

class TorchOptimizers : public OnSharedWorkers {
 protected:
  template <class Optimizer, class Rule, class Options>
  void expect_same(const char* name, const Rule& rule, const Options& options) {
    expect_same_in<double, Optimizer>(name, rule, options, torch_optim::kTolerance<double, Rule>);
    expect_same_in<float, Optimizer>(name, rule, options, torch_optim::kTolerance<float, Rule>);
  }

 private:
  template <class T, class Optimizer, class Rule, class Options>
  void expect_same_in(const char* name, const Rule& rule, const Options& options, double tolerance) {
    const auto expected = train_alone<T, Optimizer>(options);
    // LibTorch's own error depends on the processor.
    const auto exact = train_alone<double, Optimizer>(options);
    tolerance =
        std::max(tolerance, 2 * torch_optim::difference(std::vector<double>(expected.begin(), expected.end()), exact));
    for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
      SCOPED_TRACE(name);
      torch_optim::expect_as_torch<T>(
          session(), rule, expected, {}, form, tolerance, [&](const auto& weights, const auto& of_step) {
            return sr::train_step<Rule>(session(), torch_optim::gradient_in_double<T>, weights, of_step);
          });
    }
  }
};
INSTANTIATE_ON_WORKERS(TorchOptimizers, 1, 3);

TEST_P(TorchOptimizers, GiveTheSameParametersAfter100Steps) {
  expect_same<optim::SGD>("dampening", sr::SgdMomentum{.learning_rate = 0.1, .dampening = 0.3, .weight_decay = 0.01},
                          optim::SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01));
  expect_same<optim::SGD>("Nesterov", sr::SgdMomentum{.learning_rate = 0.1, .weight_decay = 0.01, .nesterov = true},
                          optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
  expect_same<optim::Adagrad>(
      "Adagrad",
      sr::Adagrad{.learning_rate = 0.1, .weight_decay = 0.01, .learning_rate_decay = 0.01, .initial_accumulator = 0.25},
      optim::AdagradOptions(0.1).lr_decay(0.01).initial_accumulator_value(0.25).weight_decay(0.01));
  expect_same<optim::RMSprop>("RMSprop",
                              sr::CenteredRmsPropMomentum{.learning_rate = 0.002, .decay = 0.95, .weight_decay = 0.01},
                              optim::RMSpropOptions(0.002).alpha(0.95).momentum(0.9).centered(true).weight_decay(0.01));
  expect_same<optim::Adam>("Adam, amsgrad", sr::AmsGrad{.learning_rate = 0.02, .weight_decay = 0.01},
                           optim::AdamOptions(0.02).amsgrad(true).weight_decay(0.01));
  expect_same<optim::AdamW>("AdamW, amsgrad", sr::AmsGrad{.learning_rate = 0.02, .decoupled_weight_decay = 0.1},
                            optim::AdamWOptions(0.02).amsgrad(true).weight_decay(0.1));
}

// An evaluation with an average leaves the parameters and their training alone.
TEST_P(TorchOptimizers, AveragedWeightsAreEvaluatedBesideTheTraining) {
  constexpr int kRows = 30;
  auto x = session().data<float, 2>({kRows, models::kInputs});
  auto y = session().data<float, 1>({kRows});
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < models::kInputs; ++j) x.write()(i, j) = static_cast<float>((5 * i + 3 * j) % 11) / 8;
    y.write()[i] = static_cast<float>(i % 7) / 4;
  }
  const auto net = session().replicate<models::lt::Replica<models::Mlp>>(3);
  auto params = models::lt::parameters(session(), net);
  auto average = sr::averaged_weights(session(), params, {.form = sr::AverageOptions::Form::equal});
  auto step = models::lt::train_step<sr::Adam, models::mlp_loss>(session(), net, params);
  const auto evaluate = models::lt::evaluation<models::mlp_loss>(session(), net, params);
  const auto evaluate_average = models::lt::evaluation<models::mlp_loss>(session(), net, average.values());
  std::vector<float> mean(static_cast<std::size_t>(params.shape(0)[0]));
  for (int i = 0; i < 2; ++i) {
    step(x, y, {.learning_rate = 0.1});
    average.update();
    const auto now = params.get(0);
    for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += now[static_cast<std::int64_t>(j)] / 2;
  }
  const double of_params = evaluate(x, y);
  const double of_average = evaluate_average(x, y);
  EXPECT_GT(std::abs(of_average - of_params), 1e-3);
  EXPECT_EQ(static_cast<double>(evaluate(x, y)), of_params);
  EXPECT_NEAR(step(x, y, {}) / of_params, 1, 1e-6);
  params.broadcast(mean);
  EXPECT_NEAR(evaluate(x, y) / of_average, 1, 1e-6);
}

// ---- Muon and Adafactor -------------------------------------------------------------------------------------------

TEST_P(TorchOptimizers, OfMatricesAreThoseOfPython) { matrices::expect_as_python(session(), 1e-12); }

TEST(TorchMuon, RefusesWhatIsNoMatrix) {
  EXPECT_ERROR(models::lt::Muon({torch::zeros({2, 2}), torch::zeros({3})}), sr::ErrorKind::usage,
               "a parameter is Float [3], expected two dimensions");
}

}  // namespace
