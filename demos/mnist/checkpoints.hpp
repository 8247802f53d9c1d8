#pragma once

// The checkpoints of the demo. A checkpoint holds everything that the next step depends on. So an interrupted run that
// continues from a checkpoint has the same losses as a run without interruption.

#include <cstdint>
#include <optional>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/report.hpp"
#include "demos/mnist/training.hpp"

namespace mnist {

namespace sr = syncrun;

/// The state of training: everything that changes from step to step, except the gradient, which each step computes
/// anew.
template <class T>
struct Progress {
  sr::Shared<T, 1> params;
  sr::Shared<T, 1> velocity;
  std::vector<std::int64_t>& order;
  std::mt19937_64& random;
  std::uint32_t& step;  // determines the dropout masks
  Pass& pass;           // over the rows, in the present epoch
};

class Checkpoints {
 public:
  /// Reads the checkpoint in the folder of `options`, if there is one. The program calls this before it starts any
  /// worker. Throws UsageError in three cases: the checkpoint is from another model, element type, seed or data set;
  /// training is to continue but there is no checkpoint; training is to start anew but there is one.
  Checkpoints(const Options& options, const Digits& digits);

  /// Restores the saved state, if training continues from a checkpoint. Returns the number of finished epochs, 0
  /// without a checkpoint. T is float or double.
  template <class T>
  int resume(const Progress<T>& progress, Report& report);

  /// Records the losses of an epoch that has ended. Saves a checkpoint if the options ask for one after this epoch.
  template <class T>
  void save(int epoch, double training_loss, double validation_loss, const Progress<T>& progress);

  /// Returns whether the options name a folder for checkpoints.
  bool are_kept() const { return !options_.checkpoint.empty(); }
  /// Saves a checkpoint in the midst of an epoch.
  template <class T>
  void save_in_epoch(const Progress<T>& progress);

 private:
  const Options& options_;
  std::size_t pixels_;
  std::optional<sr::Checkpoint> found_;
  std::vector<double> losses_;  // for each epoch: the training loss, then the validation loss
};

}  // namespace mnist
