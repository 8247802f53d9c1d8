#pragma once

// What the demo prints: one line per epoch and the test accuracy, and the losses in full precision where
// asked for.

#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"

namespace mnist {

struct EpochResult {
  int epoch;
  std::chrono::duration<double> elapsed;  // of training, without validation
  double training_loss;                   // mean over the rows, each as it was just before its step
  double validation_loss;                 // after the epoch
  double validation_accuracy;
};

class Report {
 public:
  /// Opens the file for losses. Throws UsageError where that cannot be written.
  explicit Report(const Options& options);

  void start(const Digits& digits, const std::vector<std::string>& devices);
  /// Where a run goes on that was interrupted; `losses` are the training and the validation loss of each epoch till then.
  void resume(const std::string& from, std::span<const double> losses);
  void epoch(const EpochResult& result);
  void test_accuracy(double accuracy);

 private:
  void write_losses(int epoch, double training, double validation);

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string model_;
  int epochs_;
  std::unique_ptr<std::FILE, CloseFile> losses_;  // null: not asked for
};

}  // namespace mnist
