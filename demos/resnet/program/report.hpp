#pragma once

// The output of the demo: a line for each interval of steps, a line per epoch, and the accuracy at the end.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/program/dataset.hpp"
#include "demos/resnet/program/options.hpp"

namespace resnet {

/// "ResNet-50, width 64, 224 x 224 pixels, 1000 classes".
std::string describe(const Architecture& architecture);

using Seconds = std::chrono::duration<double>;

/// Sums over the rows of some steps. The loss of each row is taken just before the step that uses it.
struct Sums {
  std::int64_t rows = 0;
  double loss = 0;
  std::int64_t correct = 0;

  void add(std::int64_t more_rows, double mean_loss, std::int64_t more_correct);
  double mean_loss() const { return loss / static_cast<double>(rows); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(rows); }
};

/// Some steps of an epoch.
struct Interval {
  int epoch;
  std::int64_t step;  // the last step of the interval, counted from 1 in the epoch
  std::int64_t steps_per_epoch;
  Sums sums;
  double learning_rate;  // of the last step
  Seconds elapsed;
};

struct EpochResult {
  int epoch;
  Sums training;
  std::optional<Sums> evaluation;  // empty if there are no rows for evaluation
  Seconds elapsed;                 // of training, without evaluation
};

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void start(const Architecture& architecture, const Dataset& dataset, std::int64_t steps_per_epoch,
             const std::vector<std::string>& devices);
  /// Prints that an interrupted run continues after `epochs` epochs, and from which checkpoint.
  void resume(int epochs, const std::string& from);
  /// Prints this line.
  void note(const std::string& line);
  void interval(const Interval& interval);
  void epoch(const EpochResult& result);
  void evaluation_accuracy(double accuracy);

 private:
  const Options& options_;
};

}  // namespace resnet
