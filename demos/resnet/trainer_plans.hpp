#pragma once

// The plans of trainers: of all workers' networks. Master.

#include <memory>
#include <optional>
#include <syncrun/syncrun.hpp>

#include "demos/resnet/checkpoints.hpp"
#include "demos/resnet/conv_plans.hpp"
#include "demos/resnet/options.hpp"
#include "demos/resnet/plan_agreement.hpp"
#include "demos/resnet/report.hpp"
#include "demos/resnet/trainer.hpp"

namespace resnet {

/// For the passes that the run will make. Null where the devices have no plans to choose from: on CPU devices.
std::unique_ptr<PlanRanks> plan_ranks(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                      const PassRows& rows);

/// The plans of a run: of --plans and of its checkpoints.
class RunPlans {
 public:
  /// Reads the file of --plans, before any worker is started. Throws UsageError: see read_plans.
  explicit RunPlans(const Options& options);

  /// Has all ranks compute by the same plans, notes where these are from, gives them to the checkpoints to be saved, and
  /// writes those that are new to the file of --plans. Throws UsageError: --plans on CPU devices, or see agree_on_plans.
  void settle(sr::Session& session, const sr::Replicated<Trainer>& trainer, const PassRows& rows,
              Checkpoints& checkpoints, Report& report) const;

 private:
  const Options& options_;
  std::optional<ConvPlans> in_file_;
};

}  // namespace resnet
