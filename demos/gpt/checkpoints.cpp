#include "demos/gpt/checkpoints.hpp"

#include <array>
#include <string>
#include <utility>

#include "demos/common/resume.hpp"

namespace gpt {
namespace {

constexpr const char* kFormat = "syncrun-gpt 1";

std::string state_of(Sharding sharding) {
  if (sharding == Sharding::kModel) return "sharded model";
  return sharding == Sharding::kState ? "sharded" : "replicated";
}

/// The folder of the files of units after so many steps.
std::string units_folder(std::int64_t steps) { return "units-" + std::to_string(steps); }

std::array<std::pair<std::string, Vector>, 3> named(const Progress& progress) {
  return {{{"params.safetensors", progress.params},
           {"m.safetensors", progress.state[0]},
           {"v.safetensors", progress.state[1]}}};
}

/// The values that must be the same in a checkpoint and in the run that continues from it. Learning rates, batch sizes,
/// the number of workers and the number of steps may change.
std::vector<sr::SavedValue> identity_of(const Options& options, const TokenFiles& files) {
  ModelConfig model = options.model;
  model.vocab_size = files.vocabulary().size();
  return {{"format", kFormat},
          {"model", describe(model)},
          {"state", state_of(options.sharding)},
          {"seed", options.seed},
          {"tokens", files.training().tokens}};
}

void check(const sr::Checkpoint& found, const std::vector<sr::SavedValue>& identity, const Options& options) {
  for (const sr::SavedValue& expected : identity) {
    const std::string got = found.has_value(expected.name()) ? found.text(expected.name()) : "";
    if (got == expected.text()) continue;
    throw UsageError("--checkpoint: expected a checkpoint with " + expected.name() + " '" + expected.text() +
                     "', got '" + got + "' in " + options.checkpoint.string() + " (another folder starts anew)");
  }
}

}  // namespace

Checkpoints::Checkpoints(const Options& options, const TokenFiles& files)
    : options_(options), identity_(identity_of(options, files)) {
  if (options.checkpoint.empty()) return;
  if (!demos::goes_on({.path = options.checkpoint,
                       .has_checkpoint = sr::Checkpoint::exists(options.checkpoint),
                       .resume = options.resume,
                       .is_restarted = sr::restarts() > 0})) {
    return;
  }
  found_.emplace(options.checkpoint);
  check(*found_, identity_, options);
}

std::int64_t Checkpoints::resume(const Progress& progress) {
  if (!found_) return 0;
  const auto steps = found_->value<std::int64_t>("step");
  if (options_.sharding == Sharding::kModel) {
    for (auto& [file, vector] : named(progress))
      progress.load_units(vector, options_.checkpoint / units_folder(steps) / file);
  } else {
    found_->load({{"params", progress.params}, {"m", progress.state[0]}, {"v", progress.state[1]}});
  }
  found_.reset();
  return steps;
}

bool Checkpoints::save(std::int64_t steps, const Progress& progress) {
  if (options_.checkpoint.empty()) return false;
  const bool stops = sr::stop_requested() && steps < options_.max_iters;
  if (steps % options_.checkpoint_every != 0 && steps != options_.max_iters && !stops) return false;
  std::vector<sr::SavedValue> values = identity_;
  values.emplace_back("step", steps);
  if (options_.sharding == Sharding::kModel) {
    save_units(steps, progress, values);
    return stops;
  }
  const auto placement = options_.sharding == Sharding::kState ? sr::Placement::scattered : sr::Placement::replicated;
  sr::save_checkpoint(
      options_.checkpoint,
      {{"params", progress.params}, {"m", progress.state[0], placement}, {"v", progress.state[1], placement}}, values);
  return stops;
}

/// The checkpoint, which names the step, replaces the old one once all files are complete. Then the old files go.
void Checkpoints::save_units(std::int64_t steps, const Progress& progress,
                             const std::vector<sr::SavedValue>& values) const {
  const std::string folder = units_folder(steps);
  std::filesystem::create_directories(options_.checkpoint / folder);
  for (const auto& [file, vector] : named(progress)) progress.save_units(vector, options_.checkpoint / folder / file);
  sr::save_checkpoint(options_.checkpoint, {}, values);
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(options_.checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("units-") && name != folder) old.push_back(entry.path());
  }
  for (const auto& each : old) std::filesystem::remove_all(each);
}

}  // namespace gpt
