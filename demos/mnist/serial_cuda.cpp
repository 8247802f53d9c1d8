// Trains a classifier of handwritten digits on one GPU: the twin of main.cpp and serial.cpp, with the same options, lines
// and losses, without Syncrun. What a GPU needs is in serial_cuda_trainer.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>

#include "demos/common/progress_bar.hpp"
#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"
#include "demos/mnist/serial_cuda_trainer.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;
using Indices = std::span<const std::int64_t>;

constexpr const char* kUsage = R"(Trains a classifier of handwritten digits on one GPU and prints its test accuracy.

usage: syncrun-mnist-serial-cuda [OPTION...]
)";

/// Passes over the rows in an evaluation, whose losses are added up as they come.
constexpr std::int64_t kEvaluationSlices = 4;

/// One pass over the rows in this order, batch by batch; the last batch is what is left. `step` trains on a
/// batch and returns its loss. Returns the mean over all rows.
template <class Step>
double train_epoch(Indices order, std::size_t batch_size, const std::string& label, Step&& step) {
  demos::ProgressBar bar(stdout, label, (order.size() + batch_size - 1) / batch_size);
  double loss_sum = 0;
  for (std::size_t first = 0; first < order.size(); first += batch_size) {
    const Indices batch = order.subspan(first, std::min(batch_size, order.size() - first));
    const double loss = step(batch);
    loss_sum += loss * static_cast<double>(batch.size());
    bar.update(first / batch_size + 1, loss);
  }
  return loss_sum / static_cast<double>(order.size());
}

double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

template <class T>
void train(const Options& options, const Digits& digits, Report& report) {
  // The data set.
  const Rows<T> training(digits, digits.training());
  const Rows<T> validation(digits, digits.validation());
  const Rows<T> test(digits, digits.test());
  std::optional<DeviceRows<T>> on_device;
  if (options.input == Input::kDevice) on_device.emplace(training);

  // The parameters on the GPU: one flat vector, and so are their velocity and their gradient.
  const auto initial = initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed);
  const DeviceArray<T> params(initial);
  const DeviceArray<T> velocity(std::vector<T>(initial.size()));
  const DeviceArray<T> gradient(std::vector<T>(initial.size()));

  // A network.
  Trainer<T> trainer(options.model, digits.height(), digits.width(), options.math);

  StepOptions at{options.learning_rate, options.momentum, {.seed = options.seed, .step = 0}};
  const auto train_batch = [&](Indices batch) -> double {
    ++at.dropout.step;
    if (options.input == Input::kHost) return trainer.step(training, batch, params, velocity, gradient, at);
    return trainer.step_on_device(*on_device, batch, params, velocity, gradient, at);
  };

  report.start(digits, {"cuda0"});
  std::vector<std::int64_t> order(digits.training().rows());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    const auto started = Clock::now();
    std::shuffle(order.begin(), order.end(), random);
    const double loss = train_epoch(order, options.batch_size, "epoch " + std::to_string(epoch), train_batch);
    const auto elapsed = Clock::now() - started;
    const Evaluation result = trainer.evaluate(validation, params, kEvaluationSlices);
    report.epoch({epoch, elapsed, loss, result.loss, fraction(result.correct, validation.rows())});
  }
  const Evaluation result = trainer.evaluate(test, params, kEvaluationSlices);
  report.test_accuracy(fraction(result.correct, test.rows()));
}

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fputs(help_text(kUsage).c_str(), stdout);
    return 0;
  }
  const Digits digits(options->data);
  Report report(*options);
  const auto train_chosen = options->precision == Precision::kFloat64 ? train<double> : train<float>;
  train_chosen(*options, digits, report);
  return 0;
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  try {
    return mnist::run(argc, argv);
  } catch (const std::exception& bad_input) {
    std::fprintf(stderr, "syncrun-mnist-serial-cuda: %s\n", bad_input.what());
    return 2;
  }
}
