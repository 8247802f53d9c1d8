#pragma once

// The output of the demo: one line per epoch, and the test accuracy. With --losses, it also writes the losses in full
// precision to a file.

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
  double training_loss;                   // mean over the rows, each row's loss taken just before the step that uses it
  double validation_loss;                 // after the epoch
  double validation_accuracy;
};

class Report {
 public:
  /// Opens the file for losses, if the options name one. Throws UsageError if it cannot be written.
  explicit Report(const Options& options);

  void start(const Digits& digits, const std::vector<std::string>& devices);
  /// Prints that an interrupted run continues, and from which checkpoint. Also writes the `losses` of the finished
  /// epochs to the file for losses: for each epoch the training loss, then the validation loss.
  void resume(const std::string& from, std::span<const double> losses);
  void epoch(const EpochResult& result);
  /// Prints that the program was told to stop in this epoch, after so many rows, and has saved a checkpoint.
  void stop(int epoch, std::size_t rows);
  void test_accuracy(double accuracy);

 private:
  void write_losses(int epoch, double training, double validation);

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string model_;
  int epochs_;
  std::unique_ptr<std::FILE, CloseFile> losses_;  // null without --losses
};

}  // namespace mnist
