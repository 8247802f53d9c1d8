#pragma once

// The loop that both programs of the digits share: the order of the batches, the clock, and the JSON line at the end.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "bench/comparators/measure.hpp"
#include "demos/mnist/options.hpp"

namespace comparators {

struct Training {
  std::vector<double> steps_us;       // without the steps of the first epoch, if there are several
  std::vector<double> epoch_step_us;  // the mean step of each of these epochs
  std::vector<double> losses;         // the mean training loss of each epoch
};

/// Trains on `rows` rows in the order of demos/mnist/main.cpp. `step` trains on a batch, and `epoch_loss` returns the
/// mean loss since it was called the last time. Only the steps are timed.
template <class Step, class EpochLoss>
Training train_digits(const mnist::Options& options, std::size_t rows, Step&& step, EpochLoss&& epoch_loss) {
  Training training;
  std::vector<std::int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    if (epoch == 2) training.steps_us.clear(), training.epoch_step_us.clear();
    const std::size_t before = training.steps_us.size();
    for (std::size_t first = 0; first < rows; first += options.batch_size) {
      const auto batch = std::span(order).subspan(first, std::min(options.batch_size, rows - first));
      const auto start = Clock::now();
      step(batch);
      training.steps_us.push_back(microseconds_since(start));
    }
    const auto begin = training.steps_us.begin() + static_cast<std::ptrdiff_t>(before);
    const double sum_us = std::accumulate(begin, training.steps_us.end(), 0.0);
    training.epoch_step_us.push_back(sum_us / static_cast<double>(training.steps_us.size() - before));
    training.losses.push_back(epoch_loss());
  }
  return training;
}

inline void print_training(const char* impl, std::size_t workers, Training training) {
  std::sort(training.steps_us.begin(), training.steps_us.end());
  std::sort(training.epoch_step_us.begin(), training.epoch_step_us.end());
  std::printf(
      "{\"name\": \"digits\", \"impl\": \"%s\", \"workers\": %zu, \"median_us\": %.1f, \"epoch_step_us\": %.1f, "
      "\"losses\": [",
      impl, workers, percentile(training.steps_us, 50), percentile(training.epoch_step_us, 50));
  const char* separator = "";
  for (const double loss : training.losses) std::printf("%s%.17g", separator, loss), separator = ", ";
  std::printf("]}\n");
  std::fflush(stdout);
}

}  // namespace comparators
