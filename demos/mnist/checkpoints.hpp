#pragma once

// What the demo saves after an epoch and goes on from: everything that the next epoch depends on, so that a run which was
// interrupted has the losses of one that was not.

#include <cstdint>
#include <optional>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"

namespace mnist {

namespace sr = syncrun;

/// How far training is: references to what changes from epoch to epoch. The gradient is not among it.
template <class T>
struct Progress {
  const sr::Shared<T, 1>& params;
  const sr::Shared<T, 1>& velocity;
  std::vector<std::int64_t>& order;
  std::mt19937_64& random;
  std::uint32_t& step;  // keys the dropout masks
};

class Checkpoints {
 public:
  /// Looks at the folder of `options`, before any worker is started. Throws UsageError: what is there is from another
  /// model, element type, seed or data set; or it should go on, and there is nothing; or it should not, and there is.
  Checkpoints(const Options& options, const Digits& digits);

  /// Takes over what was saved, if it is to be gone on from. Returns the number of epochs done. T is float or double.
  template <class T>
  int resume(const Progress<T>& progress, Report& report);

  /// After an epoch, if it is one to save after.
  template <class T>
  void save(int epoch, double training_loss, double validation_loss, const Progress<T>& progress);

 private:
  const Options& options_;
  std::size_t pixels_;
  std::optional<sr::Checkpoint> found_;
  std::vector<double> losses_;  // training and validation, by epoch
};

}  // namespace mnist
