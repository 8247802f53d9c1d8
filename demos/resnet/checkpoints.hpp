#pragma once

// What the demo saves after an epoch and goes on from: everything that the next epoch depends on, so that a run which was
// interrupted ends with the parameters of one that was not.

#include <optional>
#include <string>
#include <syncrun/syncrun.hpp>

#include "demos/resnet/architecture.hpp"
#include "demos/resnet/conv_plans.hpp"
#include "demos/resnet/dataset.hpp"
#include "demos/resnet/options.hpp"
#include "demos/resnet/report.hpp"
#include "demos/resnet/training_step.hpp"

namespace resnet {

/// How far training is: what changes from epoch to epoch. The order of the rows, the crops and the learning rate are
/// functions of the seed and the number of the epoch or step.
struct Progress {
  const sr::Shared<float, 1>& params;
  const sr::Shared<float, 1>& statistics;  // the same on all ranks when it is saved
  TrainingStep& step;
};

/// Whether all that a checkpoint would hold of it, on rank 0, is numbers.
bool is_finite(const Progress& progress);

class Checkpoints {
 public:
  /// Looks at the folder of `options`, before any worker is started. Throws UsageError: what is there is from another
  /// architecture, optimizer, seed or data set, or its plans are damaged; or it should go on, and there is nothing; or it
  /// should not, and there is.
  Checkpoints(const Options& options, const Architecture& architecture, const Dataset& dataset);

  /// Takes over what was saved, if it is to be gone on from. Returns the number of epochs done.
  int resume(const Progress& progress, Report& report);

  /// Whether the run goes on from a checkpoint; until resume().
  bool goes_on() const { return found_.has_value(); }
  /// cuDNN's plans, which are saved with every checkpoint: at first those of the one that was found. None: a run on CPU
  /// devices, or a checkpoint of an earlier version.
  const std::optional<ConvPlans>& plans() const { return plans_; }
  void set_plans(ConvPlans plans) { plans_ = std::move(plans); }

  /// Whether an epoch is one to save after.
  bool is_due(int epoch) const;
  /// Saves, if it is. What is_finite says is the caller's to look at: the checkpoint before is given up for this one.
  void save(int epoch, const Progress& progress);

  /// For messages: where the last checkpoint is, if there is one.
  std::string last() const;

 private:
  const Options& options_;
  std::vector<sr::SavedValue> identity_;  // what has to be the same when it goes on
  std::optional<sr::Checkpoint> found_;
  std::optional<ConvPlans> plans_;
};

}  // namespace resnet
