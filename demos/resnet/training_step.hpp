#pragma once

// The training step that the user has chosen a rule for: which rule it is matters to nobody else.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <syncrun/syncrun.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "demos/resnet/dataset.hpp"
#include "demos/resnet/options.hpp"
#include "demos/resnet/trainer.hpp"

namespace resnet {

/// A train step of Syncrun around Trainer::loss_and_gradient. Master.
class TrainingStep {
 public:
  virtual ~TrainingStep() = default;

  /// Trains on these rows in so many slices, without waiting; on rows that are on the devices, on all of them. What it
  /// throws, and what the future does, is as of sr::TrainStep.
  virtual sr::Future<Fit> launch(std::span<const std::int64_t> rows, std::int64_t slices, const StepInput& input,
                                 double learning_rate) = 0;

  /// What the rule keeps from step to step, by name: vectors as long as the parameters.
  virtual std::vector<std::pair<std::string, sr::Shared<float, 1>>> state() const = 0;
  virtual std::int64_t steps() const = 0;
  virtual void set_steps(std::int64_t steps) = 0;
};

/// Where rows come from.
using TrainingRows = std::variant<SharedImages, DeviceImages>;

/// With parameters that have their values. Throws sr::Error: usage, system (memory).
std::unique_ptr<TrainingStep> make_training_step(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                                 const TrainingRows& rows, const sr::Shared<float, 1>& statistics,
                                                 const sr::Shared<float, 1>& params, const OptimizerOptions& options,
                                                 const sr::TrainStepOptions& form = {.name = "step"});

}  // namespace resnet
