// Measures the train step of the demo that trains on the digits, and prints the loss of each epoch. run_nodes.py starts
// it on several hosts, in turn with comparators/mpi_digits. The options are those of the demo.
//
//   mpirun ... syncrun -n 2 bench_digits --epochs 3

#include <cstdint>
#include <cstdio>
#include <exception>
#include <syncrun/syncrun.hpp>
#include <utility>

#include "bench/comparators/digits.hpp"
#include "demos/mnist/digits.hpp"
#include "demos/mnist/functions.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/rows.hpp"
#include "demos/mnist/trainer.hpp"
#include "demos/mnist/training.hpp"

namespace {

namespace sr = syncrun;

template <class T>
void train(sr::Session& session, const mnist::Options& options) {
  const mnist::Digits digits(options.data);
  const mnist::SharedRows<T> rows(session, digits, digits.training());
  const auto params = session.shared(
      "params", mnist::initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed));
  const auto trainer =
      session.replicate<mnist::Trainer<T>>(options.model, digits.height(), digits.width(), options.math);
  mnist::StepOnRows<T> step(session, trainer, params, rows);
  const sr::Nesterov rule{.learning_rate = options.learning_rate, .momentum = options.momentum};
  demos::StepKey dropout{.seed = options.seed, .step = 0};
  double loss_sum = 0;
  const auto training = comparators::train_digits(
      options, static_cast<std::size_t>(rows.rows()),
      [&](auto batch) {
        ++dropout.step;
        loss_sum += step(batch, dropout, rule) * static_cast<double>(batch.size());
      },
      [&] { return std::exchange(loss_sum, 0) / static_cast<double>(rows.rows()); });
  comparators::print_training("syncrun", static_cast<std::size_t>(session.world_size()), training);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  try {
    const auto options = mnist::parse_options(argc, argv);
    if (!options) return 0;
    const auto chosen = options->precision == mnist::Precision::kFloat64 ? train<double> : train<float>;
    return sr::run(argc, argv, [&](sr::Session& session) { chosen(session, *options); }, {.seed = options->seed});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_digits: %s\n", error.what());
    return 2;
  }
}
