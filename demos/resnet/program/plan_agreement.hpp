#pragma once

// Makes all workers of a run compute with the same plans (conv_plans.hpp). The plans come from the file of --plans and
// from the checkpoint from which the run continues. Rank 0 chooses by timing the plans that neither has. This code runs
// in the master and needs no GPU: it accesses the workers through an interface.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demos/resnet/network/conv_plans.hpp"

namespace resnet {

/// The numbers of rows in a worker's passes over its network. Each number is listed once. Unused places are 0.
struct PassRows {
  std::array<std::int64_t, 8> training{};    // in passes of the usual step, and of the last step of an epoch
  std::array<std::int64_t, 4> evaluation{};  // in passes of an evaluation
};

/// The rows of a step or an evaluation, and the number of slices into which the part of each rank is split.
struct Division {
  std::int64_t rows;
  std::int64_t slices;
};

/// The numbers of rows in the slices of all ranks, largest first. A run has one or two kinds of steps, and at most one
/// kind of evaluations.
PassRows rows_of_passes(int ranks, const std::vector<Division>& steps, const std::optional<Division>& evaluation);

/// An interface to the workers, for plans only.
class PlanRanks {
 public:
  virtual ~PlanRanks() = default;
  virtual int count() const = 0;
  virtual PlanPlace place_of(int rank) = 0;
  /// Rank 0 takes over the known plans, and chooses by timing the other plans that the run needs. Returns both.
  virtual ConvPlans choose(const ConvPlans& known) = 0;
  /// All ranks on the same kind of GPU as rank 0 take over these plans.
  virtual void adopt(const ConvPlans& plans) = 0;
};

/// The sources of plans.
struct PlanSources {
  std::filesystem::path file{};              // the file of --plans; empty without --plans
  std::optional<ConvPlans> in_file{};        // empty if the file does not exist yet
  std::filesystem::path checkpoint{};        // from which the run continues; empty if there is none
  std::optional<ConvPlans> in_checkpoint{};  // empty if the checkpoint was saved without plans
};

struct AgreedPlans {
  ConvPlans plans;
  std::vector<std::string> notes;  // for the user: where the plans come from, and what does not fit
};

/// Takes the plans of the file first, then those of the checkpoint. Throws UsageError if a rank has another GPU or
/// version than the file is for. If this is so for the checkpoint, adds a note and chooses plans anew.
AgreedPlans agree_on_plans(PlanRanks& ranks, const PlanSources& sources);

/// Reads the list of plans in a file. Returns nothing if the file does not exist but its folder does. Throws UsageError
/// if the folder does not exist either, if the file is not a regular file or cannot be read, or if it is not a list of
/// plans.
std::optional<ConvPlans> read_plans(const std::filesystem::path& file);

/// Writes a list of plans. It writes a file FILE.PID.tmp in the same folder and renames it, so that a crash leaves
/// either the old list or the new one. Throws std::runtime_error if the list cannot be written. The old file then
/// stays.
void write_plans(const std::filesystem::path& file, const ConvPlans& plans);

}  // namespace resnet
