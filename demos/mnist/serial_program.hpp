#pragma once

// The twin of main.cpp without Syncrun. It has the same options, prints the same lines and gets the same losses, on one
// device. serial.cpp makes a program for the CPU from it, with the Trainer of serial_trainer.hpp. serial_cuda.cpp makes
// one for a GPU, with the Trainer of serial_cuda_trainer.hpp. `diff serial_program.hpp main.cpp` shows what a program
// needs to run on every device at once.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"
#include "demos/mnist/serial_rows.hpp"
#include "demos/mnist/training.hpp"

namespace mnist {

using Clock = std::chrono::steady_clock;
using Indices = std::span<const std::int64_t>;

template <class T, template <class> class Trainer>
void train(const Options& options, const Digits& digits, Report& report) {
  // The data set.
  const Rows<T> training(digits, digits.training());
  const Rows<T> validation(digits, digits.validation());
  const Rows<T> test(digits, digits.test());

  // The parameters, their velocity and their gradient: one flat vector each.
  const auto initial = initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed);
  typename Trainer<T>::Vector params(initial);
  typename Trainer<T>::Vector velocity(std::vector<T>(initial.size()));
  typename Trainer<T>::Vector gradient(std::vector<T>(initial.size()));

  // A network.
  Trainer<T> trainer(options.model, digits.height(), digits.width(), options.math);
  if (options.input == Input::kDevice) trainer.hold(training);

  StepOptions at{options.learning_rate, options.momentum, {.seed = options.seed, .step = 0}};
  const auto train_batch = [&](Indices batch) -> double {
    ++at.dropout.step;
    return trainer.step(training, batch, params, velocity, gradient, at);
  };

  report.start(digits, {Trainer<T>::kDevice});
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

template <template <class> class Trainer>
int run(int argc, char** argv, const char* usage) {
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fputs(help_text(usage).c_str(), stdout);
    return 0;
  }
  const Digits digits(options->data);
  Report report(*options);
  const auto train_chosen = options->precision == Precision::kFloat64 ? train<double, Trainer> : train<float, Trainer>;
  train_chosen(*options, digits, report);
  return 0;
}

/// The main function of a twin.
template <template <class> class Trainer>
int run_serial_program(int argc, char** argv, const char* name, const char* usage) {
  try {
    return run<Trainer>(argc, argv, usage);
  } catch (const std::exception& bad_input) {
    std::fprintf(stderr, "%s: %s\n", name, bad_input.what());
    return 2;
  }
}

}  // namespace mnist
