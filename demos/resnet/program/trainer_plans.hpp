#pragma once

// The plans of the networks of all workers. This code runs in the master.

#include <memory>
#include <optional>
#include <syncrun/syncrun.hpp>

#include "demos/resnet/network/conv_plans.hpp"
#include "demos/resnet/program/checkpoints.hpp"
#include "demos/resnet/program/options.hpp"
#include "demos/resnet/program/plan_agreement.hpp"
#include "demos/resnet/program/report.hpp"
#include "demos/resnet/program/trainer.hpp"

namespace resnet {

/// Makes the interface to the workers' plans, for the passes that the run will make. Returns null on CPU devices, which
/// have no plans.
std::unique_ptr<PlanRanks> plan_ranks(sr::Session& session, const sr::Replicated<Trainer>& trainer,
                                      const PassRows& rows);

/// The plans of a run, from --plans and from its checkpoints.
class RunPlans {
 public:
  /// Reads the file of --plans. The program calls this before it starts any worker. Throws UsageError as read_plans
  /// does.
  explicit RunPlans(const Options& options);

  /// Makes all ranks compute with the same plans, and reports where these come from. Gives them to `checkpoints`, which
  /// save them. If there are new plans, writes the file of --plans. Throws UsageError if --plans is used on CPU
  /// devices, and as agree_on_plans does.
  void settle(sr::Session& session, const sr::Replicated<Trainer>& trainer, const PassRows& rows,
              Checkpoints& checkpoints, Report& report) const;

 private:
  const Options& options_;
  std::optional<ConvPlans> in_file_;
};

}  // namespace resnet
