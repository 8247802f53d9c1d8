#pragma once

// The training step with the update rule that the user has chosen. The rest of the program does not depend on the rule.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <syncrun/syncrun.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "demos/resnet/program/dataset.hpp"
#include "demos/resnet/program/options.hpp"
#include "demos/resnet/program/trainer.hpp"

namespace resnet {

/// A train step of Syncrun around Trainer::loss_and_gradient. Only the master uses it.
class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  /// Starts to train on `rows` in `slices` slices, and does not wait. If the rows lie on the devices, it trains on all
  /// of them instead. It throws, and the future behaves, as for sr::TrainStep.
  virtual sr::Future<Fit> launch(std::span<const std::int64_t> rows, std::int64_t slices, const StepInput& input,
                                 double learning_rate) = 0;

  /// The state that the rule keeps from step to step: named vectors as long as the parameters.
  virtual std::vector<std::pair<std::string, sr::Shared<float, 1>>> state() const = 0;
  virtual std::int64_t steps() const = 0;
  virtual void set_steps(std::int64_t steps) = 0;
};

/// The training rows, in shared memory or on the devices.
using TrainingRows = std::variant<SharedImages, DeviceImages>;

/// Makes a training step. `params` must have their initial values. Throws sr::Error: usage, or system if memory is
/// short.
std::unique_ptr<TrainingStep> make_training_step(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                                 const TrainingRows& rows, const sr::Shared<float, 1>& statistics,
                                                 const sr::Shared<float, 1>& params, const OptimizerOptions& options,
                                                 const sr::TrainStepOptions& form = {.name = "step"});

}  // namespace resnet
