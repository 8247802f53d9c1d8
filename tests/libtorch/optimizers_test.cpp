// Averages of parameters beside their training, and optimizers of matrices against those of Python.
// tests/api/torch_optim_test.cpp compares all rules with those of Python.

#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "tests/libtorch/matrix_trainer.hpp"
#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

class TorchOptimizers : public OnSharedWorkers {};
INSTANTIATE_ON_WORKERS(TorchOptimizers, 1, 3);

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

TEST(DividedOptimizer, RefusesParametersThatOccurTwiceOrCannotBeExchanged) {
  using Parameters = models::lt::detail::DividedParameters;
  const auto weight = torch::zeros({2, 3});
  EXPECT_ERROR(Parameters({weight, torch::zeros({4}), weight}, 0, 2), sr::ErrorKind::usage,
               "Float [2, 3], occurs twice");
  EXPECT_ERROR(Parameters({torch::zeros({2}, torch::kInt64)}, 0, 2), sr::ErrorKind::usage,
               "a parameter is Long [2], expected float64, float32");
}

TEST(TorchMuon, RefusesWhatIsNoMatrix) {
  EXPECT_ERROR(models::lt::Muon({torch::zeros({2, 2}), torch::zeros({3})}), sr::ErrorKind::usage,
               "a parameter is Float [3], expected two dimensions");
}

}  // namespace
