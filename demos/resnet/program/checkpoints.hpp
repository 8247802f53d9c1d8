#pragma once

// The checkpoints of the demo. A checkpoint holds everything that the next epoch depends on. So an interrupted run that
// continues from a checkpoint ends with the same parameters as a run without interruption.

#include <optional>
#include <string>
#include <syncrun/syncrun.hpp>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/conv_plans.hpp"
#include "demos/resnet/program/dataset.hpp"
#include "demos/resnet/program/options.hpp"
#include "demos/resnet/program/report.hpp"
#include "demos/resnet/program/training_step.hpp"

namespace resnet {

/// The state of training: everything that changes from epoch to epoch. The order of the rows, the crops and the
/// learning rate are not part of it, because they are functions of the seed and of the number of the epoch or step.
struct Progress {
  const sr::Shared<float, 1>& params;
  const sr::Shared<float, 1>& statistics;  // must be the same on all ranks when it is saved
  TrainingStep& step;
};

/// Returns whether all values of rank 0 that a checkpoint would hold are finite.
bool is_finite(const Progress& progress);

class Checkpoints {
 public:
  /// Reads the checkpoint in the folder of `options`, if there is one. The program calls this before it starts any
  /// worker. Throws UsageError in these cases: the checkpoint is from another architecture, optimizer, seed or data
  /// set; its plans are damaged; training is to continue but there is no checkpoint; training is to start anew but
  /// there is one.
  Checkpoints(const Options& options, const Architecture& architecture, const Dataset& dataset);

  /// Restores the saved state, if training continues from a checkpoint. Returns the number of finished epochs, 0
  /// without a checkpoint.
  int resume(const Progress& progress, Report& report);

  /// Returns whether the run continues from a checkpoint. Valid only before resume().
  bool goes_on() const { return found_.has_value(); }
  /// The plans of cuDNN that are saved with every checkpoint. Before set_plans, these are the plans of the checkpoint
  /// from which the run continues. Empty if there is no such checkpoint, if it has no plans (it was saved by an earlier
  /// version), or in a run on CPU devices.
  const std::optional<ConvPlans>& plans() const { return plans_; }
  void set_plans(ConvPlans plans) { plans_ = std::move(plans); }

  /// Returns whether a checkpoint is to be saved after this epoch.
  bool is_due(int epoch) const;
  /// Saves a checkpoint if it is due. It replaces the checkpoint before, so the caller must check is_finite first.
  void save(int epoch, const Progress& progress);

  /// A text for messages that says where the last checkpoint is, or that there is none.
  std::string last() const;

 private:
  const Options& options_;
  std::vector<sr::SavedValue> identity_;  // values that must be the same when the run continues
  std::optional<sr::Checkpoint> found_;
  std::optional<ConvPlans> plans_;
};

}  // namespace resnet
