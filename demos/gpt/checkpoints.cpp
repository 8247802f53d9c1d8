#include "demos/gpt/checkpoints.hpp"

#include <string>

#include "demos/common/resume.hpp"

namespace gpt {
namespace {

constexpr const char* kFormat = "syncrun-gpt 1";

/// The values that must be the same in a checkpoint and in the run that continues from it. Learning rates, batch sizes,
/// the number of workers and the number of steps may change.
std::vector<sr::SavedValue> identity_of(const Options& options, const TokenFiles& files) {
  ModelConfig model = options.model;
  model.vocab_size = files.vocabulary().size();
  return {{"format", kFormat},
          {"model", describe(model)},
          {"state", options.state == State::kSharded ? "sharded" : "replicated"},
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
  found_->load({{"params", progress.params}, {"m", progress.state[0]}, {"v", progress.state[1]}});
  const auto steps = found_->value<std::int64_t>("step");
  found_.reset();
  return steps;
}

bool Checkpoints::save(std::int64_t steps, const Progress& progress) {
  if (options_.checkpoint.empty()) return false;
  const bool stops = sr::stop_requested() && steps < options_.max_iters;
  if (steps % options_.checkpoint_every != 0 && steps != options_.max_iters && !stops) return false;
  const auto placement = options_.state == State::kSharded ? sr::Placement::scattered : sr::Placement::replicated;
  std::vector<sr::SavedValue> values = identity_;
  values.emplace_back("step", steps);
  sr::save_checkpoint(
      options_.checkpoint,
      {{"params", progress.params}, {"m", progress.state[0], placement}, {"v", progress.state[1], placement}}, values);
  return stops;
}

}  // namespace gpt
