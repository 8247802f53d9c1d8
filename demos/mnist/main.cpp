// Trains a classifier of handwritten digits on every device at once. This is a serial program: main and train run once,
// in the master process. The functions for a step and an evaluation (trainer.hpp) run on all workers at the same time.
// Each worker computes its own rows.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <syncrun/syncrun.hpp>

#include "demos/common/cuda_build.hpp"
#include "demos/mnist/checkpoints.hpp"
#include "demos/mnist/digits.hpp"
#include "demos/mnist/functions.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"
#include "demos/mnist/rows.hpp"
#include "demos/mnist/trainer.hpp"
#include "demos/mnist/training.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;
using Indices = std::span<const std::int64_t>;

/// Returns the exit code.
template <class T, template <class> class Step>
int train(sr::Session& session, const Options& options, const Digits& digits, Report& report,
          Checkpoints& checkpoints) {
  // The data set, in memory that every worker has mapped.
  const SharedRows<T> training(session, digits, digits.training());
  const SharedRows<T> validation(session, digits, digits.validation());
  const SharedRows<T> test(session, digits, digits.test());

  // The same parameters on every device: one flat vector.
  const auto params =
      session.shared("params", initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed));

  // A network on every worker. Its methods become functions that this program calls. A step makes its own gradient and
  // velocity.
  const auto trainer = session.replicate<Trainer<T>>(options.model, digits.height(), digits.width(), options.math);
  const auto evaluate = evaluate_function(session, trainer);
  Step<T> step(session, trainer, params, training);

  const sr::Nesterov rule{.learning_rate = options.learning_rate, .momentum = options.momentum};
  demos::StepKey dropout{.seed = options.seed, .step = 0};
  const auto train_batch = [&](Indices batch) -> double {
    ++dropout.step;
    return step(batch, dropout, rule);
  };

  report.start(digits, session.devices());
  std::vector<std::int64_t> order(digits.training().rows());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  Pass pass;
  const Progress<T> progress{params, step.velocity(), order, random, dropout.step, pass};
  // A scheduler may tell the job to stop. It then continues after this step when it is started again.
  const auto stops = [&] { return checkpoints.are_kept() && sr::stop_requested(); };
  for (int epoch = 1 + checkpoints.resume(progress, report); epoch <= options.epochs; ++epoch) {
    const auto started = Clock::now();
    if (pass.rows == 0) std::shuffle(order.begin(), order.end(), random);
    train_rows(order, options.batch_size, "epoch " + std::to_string(epoch), pass, train_batch, stops);
    if (pass.rows < order.size()) {
      checkpoints.save_in_epoch(progress);
      report.stop(epoch, pass.rows);
      return sr::kRequeueExitCode;
    }
    const double loss = pass.loss_sum / static_cast<double>(order.size());
    pass = {};
    const auto elapsed = Clock::now() - started;
    const Evaluation result = evaluate(validation.images, validation.labels, params, {.slices = kEvaluationSlices});
    report.epoch({epoch, elapsed, loss, result.loss, fraction(result.correct, validation.rows())});
    checkpoints.save(epoch, loss, result.loss, progress);
  }
  const Evaluation result = evaluate(test.images, test.labels, params, {.slices = kEvaluationSlices});
  report.test_accuracy(fraction(result.correct, test.rows()));
  return 0;
}

constexpr const char* kUsage =
    R"(Trains a classifier of handwritten digits on every device at once and prints its test accuracy.

usage: syncrun-mnist [OPTION...]
       syncrun -n 4 syncrun-mnist [OPTION...]
)";

template <class T>
auto train_on(Input input) {
  return input == Input::kDevice ? train<T, StepOnShards> : train<T, StepOnRows>;
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
    const auto train_chosen =
        options->precision == Precision::kFloat64 ? train_on<double>(options->input) : train_on<float>(options->input);
    return train_chosen(session, *options, digits, report, checkpoints);
  };
  return sr::run(argc, argv, program, {.seed = options->seed});
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  const std::string why_without_cuda = demos::run_cuda_build(argv);
  if (const auto exit_code = syncrun::serve_if_worker(argc, argv)) return *exit_code;  // a worker ends here
  if (!why_without_cuda.empty()) std::fprintf(stderr, "syncrun-mnist: %s\n", why_without_cuda.c_str());
  try {
    return mnist::run(argc, argv);
  } catch (const std::exception& bad_input) {  // found before any worker has been started
    std::fprintf(stderr, "syncrun-mnist: %s\n", bad_input.what());
    return 2;
  }
}
