// Trains a classifier of handwritten digits on every device at once. This is a serial program: main and train
// run once, in the master process. step and evaluate (trainer.hpp) run on all workers at the same time, each
// on its own rows.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <syncrun/syncrun.hpp>

#include "demos/common/progress_bar.hpp"
#include "demos/mnist/checkpoints.hpp"
#include "demos/mnist/digits.hpp"
#include "demos/mnist/functions.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"
#include "demos/mnist/rows.hpp"
#include "demos/mnist/trainer.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;
using Indices = std::span<const std::int64_t>;

constexpr const char* kUsage =
    R"(Trains a classifier of handwritten digits on every device at once and prints its test accuracy.

usage: syncrun-mnist [OPTION...]
       syncrun -n 4 syncrun-mnist [OPTION...]
)";

/// Passes over a worker's rows in an evaluation: the images need a quarter of the device memory.
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

/// A variable with these values on every device.
template <class T>
sr::Shared<T, 1> broadcast(sr::Session& session, std::string_view name, const std::vector<T>& values) {
  auto variable = session.shared<T, 1>(name);
  variable.broadcast(values);
  return variable;
}

double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

template <class T>
void train(sr::Session& session, const Options& options, const Digits& digits, Report& report,
           Checkpoints& checkpoints) {
  // The data set, in memory that every worker has mapped.
  const SharedRows<T> training(session, digits, digits.training());
  const SharedRows<T> validation(session, digits, digits.validation());
  const SharedRows<T> test(session, digits, digits.test());
  Shards<T> shards(session);
  if (options.input == Input::kDevice) shards.scatter(training);

  // The same parameters on every device: one flat vector, and so are their velocity and their gradient.
  const auto initial = initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed);
  const auto params = broadcast(session, "params", initial);
  const auto velocity = broadcast(session, "velocity", std::vector<T>(initial.size()));
  const auto gradient = broadcast(session, "gradient", std::vector<T>(initial.size()));

  // A network on every worker; its methods are functions to call here.
  const auto trainer = session.replicate<Trainer<T>>(options.model, digits.height(), digits.width(), options.math);
  const auto step = step_function(session, trainer);
  const auto step_on_shards = step_on_shards_function(session, trainer);
  const auto evaluate = evaluate_function(session, trainer);

  StepOptions at{options.learning_rate, options.momentum, {.seed = options.seed, .step = 0}};
  const auto train_batch = [&](Indices batch) -> double {
    ++at.dropout.step;
    if (options.input == Input::kHost) {
      return step(training.images, training.labels, training.ids, params, velocity, gradient, at, {.batch = batch});
    }
    return step_on_shards(shards.images, shards.labels, shards.ids, params, velocity, gradient, at,
                          {.batch_s = shards.select(batch)});
  };

  report.start(digits, session.devices());
  std::vector<std::int64_t> order(digits.training().rows());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  const Progress<T> progress{params, velocity, order, random, at.dropout.step};
  for (int epoch = 1 + checkpoints.resume(progress, report); epoch <= options.epochs; ++epoch) {
    const auto started = Clock::now();
    std::shuffle(order.begin(), order.end(), random);
    const double loss = train_epoch(order, options.batch_size, "epoch " + std::to_string(epoch), train_batch);
    const auto elapsed = Clock::now() - started;
    const Evaluation result = evaluate(validation.images, validation.labels, params, {.slices = kEvaluationSlices});
    report.epoch({epoch, elapsed, loss, result.loss, fraction(result.correct, validation.rows())});
    checkpoints.save(epoch, loss, result.loss, progress);
  }
  const Evaluation result = evaluate(test.images, test.labels, params, {.slices = kEvaluationSlices});
  report.test_accuracy(fraction(result.correct, test.rows()));
}

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv, Checkpointing::kOffered);
  if (!options) {
    std::fputs(help_text(kUsage, Checkpointing::kOffered).c_str(), stdout);
    return 0;
  }
  const Digits digits(options->data);
  Checkpoints checkpoints(*options, digits);
  Report report(*options);
  const auto program = [&](sr::Session& session) {
    const auto train_chosen = options->precision == Precision::kFloat64 ? train<double> : train<float>;
    train_chosen(session, *options, digits, report, checkpoints);
  };
  return sr::run(argc, argv, program, {.seed = options->seed});
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  if (const auto exit_code = syncrun::serve_if_worker(argc, argv)) return *exit_code;  // a worker ends here
  try {
    return mnist::run(argc, argv);
  } catch (const std::exception& bad_input) {  // found before any worker was started
    std::fprintf(stderr, "syncrun-mnist: %s\n", bad_input.what());
    return 2;
  }
}
