#pragma once

// How the workers of a run come to compute with the same plans (conv_plans.hpp): from the file of --plans, from the
// checkpoint that the run goes on from, and where neither has them, by timing on rank 0. All of it is in the master, and
// needs no GPU: the workers are behind an interface.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demos/resnet/conv_plans.hpp"

namespace resnet {

/// The numbers of rows that a worker's passes over its network have in a run, each of them once; 0 stands for none.
struct PassRows {
  std::array<std::int64_t, 8> training{};    // of the usual step and of an epoch's last one
  std::array<std::int64_t, 4> evaluation{};  // of an evaluation
};

/// A step's or an evaluation's rows, and into how many slices each rank's part of them is split.
struct Division {
  std::int64_t rows;
  std::int64_t slices;
};

/// The rows of all ranks' slices, largest first. A run has one or two kinds of steps, and one of evaluations, or none.
PassRows rows_of_passes(int ranks, const std::vector<Division>& steps, const std::optional<Division>& evaluation);

/// The workers, as far as plans go.
class PlanRanks {
 public:
  virtual ~PlanRanks() = default;
  virtual int count() const = 0;
  virtual PlanPlace place_of(int rank) = 0;
  /// Rank 0 takes the plans that are known, and chooses by timing those that the run needs besides. Returns both.
  virtual ConvPlans choose(const ConvPlans& known) = 0;
  /// All ranks on the same kind of GPU as rank 0 take these.
  virtual void adopt(const ConvPlans& plans) = 0;
};

/// The sources of plans.
struct PlanSources {
  std::filesystem::path file{};              // of --plans; empty: none
  std::optional<ConvPlans> in_file{};        // none: there is no such file yet
  std::filesystem::path checkpoint{};        // that the run goes on from; empty: none
  std::optional<ConvPlans> in_checkpoint{};  // none: it was saved without
};

struct AgreedPlans {
  ConvPlans plans;
  std::vector<std::string> notes;  // for the user: what was taken from where, and what does not fit
};

/// The file's plans are taken first, then the checkpoint's. Throws UsageError where the file is for another GPU or version
/// than a rank has; a checkpoint that is so is noted, and chosen anew for.
AgreedPlans agree_on_plans(PlanRanks& ranks, const PlanSources& sources);

/// The list in a file, or nothing where there is no such file, but a folder for it. Throws UsageError: anything else than a
/// regular file, or one that is no list of plans.
std::optional<ConvPlans> read_plans(const std::filesystem::path& file);

/// Writes beside the file's place (FILE.PID.tmp) and renames, so that a crash leaves the old list or the new one. Throws
/// std::runtime_error where it cannot be written; what was there stays.
void write_plans(const std::filesystem::path& file, const ConvPlans& plans);

}  // namespace resnet
