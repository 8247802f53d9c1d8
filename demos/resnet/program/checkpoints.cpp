#include "demos/resnet/program/checkpoints.hpp"

#include <algorithm>
#include <cmath>

#include "demos/common/resume.hpp"

namespace resnet {
namespace {

constexpr const char* kFormat = "syncrun-resnet 1";

/// The values that must be the same in a checkpoint and in the run that continues from it. Learning rates, batch sizes
/// and the number of epochs may change.
std::vector<sr::SavedValue> identity_of(const Options& options, const Architecture& architecture,
                                        const Dataset& dataset) {
  return {{"format", kFormat},
          {"architecture", describe(architecture)},
          {"optimizer", options.rule.name},
          {"seed", options.seed},
          {"rows", dataset.training_rows().size()}};
}

void check(const sr::Checkpoint& found, const std::vector<sr::SavedValue>& identity, const Options& options) {
  for (const sr::SavedValue& expected : identity) {
    const std::string got = found.has_value(expected.name()) ? found.text(expected.name()) : "";
    if (got == expected.text()) continue;
    throw UsageError("--checkpoint: expected a checkpoint with " + expected.name() + " '" + expected.text() +
                     "', got '" + got + "' in " + options.checkpoint.string() + " (another folder starts anew)");
  }
}

std::optional<ConvPlans> plans_of(const sr::Checkpoint& found, const Options& options) {
  if (!found.has_value("plans")) return std::nullopt;
  try {
    return ConvPlans::parse(found.text("plans"));
  } catch (const PlansError& error) {
    throw UsageError("--checkpoint: the plans in " + options.checkpoint.string() + ", " + error.what());
  }
}

/// The arrays of a checkpoint, to save or to load: Array is sr::SavedArray or sr::NamedArray.
template <class Array>
std::vector<Array> arrays_of(const Progress& progress) {
  std::vector<Array> arrays{{"params", progress.params}, {"statistics", progress.statistics}};
  for (const auto& [name, vector] : progress.step.state()) arrays.push_back({name, vector});
  return arrays;
}

bool are_finite(const sr::Shared<float, 1>& vector) {
  const auto values = vector.get(0);
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

bool is_finite(const Progress& progress) {
  if (!are_finite(progress.params) || !are_finite(progress.statistics)) return false;
  const auto state = progress.step.state();
  return std::all_of(state.begin(), state.end(), [](const auto& named) { return are_finite(named.second); });
}

Checkpoints::Checkpoints(const Options& options, const Architecture& architecture, const Dataset& dataset)
    : options_(options), identity_(identity_of(options, architecture, dataset)) {
  if (options.checkpoint.empty()) return;
  if (!demos::goes_on({.path = options.checkpoint,
                       .has_checkpoint = sr::Checkpoint::exists(options.checkpoint),
                       .resume = options.resume,
                       .is_restarted = sr::restarts() > 0})) {
    return;
  }
  found_.emplace(options.checkpoint);
  check(*found_, identity_, options);
  plans_ = plans_of(*found_, options);
}

int Checkpoints::resume(const Progress& progress, Report& report) {
  if (!found_) return 0;
  found_->load(arrays_of<sr::NamedArray>(progress));
  progress.step.set_steps(found_->value<std::int64_t>("step"));
  const int epochs = found_->value<int>("epoch");
  found_.reset();
  report.resume(epochs, options_.checkpoint.string());
  return epochs;
}

bool Checkpoints::is_due(int epoch) const {
  return !options_.checkpoint.empty() && (epoch % options_.checkpoint_every == 0 || epoch == options_.epochs);
}

void Checkpoints::save(int epoch, const Progress& progress) {
  if (!is_due(epoch)) return;
  std::vector<sr::SavedValue> values = identity_;
  values.emplace_back("epoch", epoch);
  values.emplace_back("step", progress.step.steps());
  if (plans_) values.emplace_back("plans", plans_->text());
  sr::save_checkpoint(options_.checkpoint, arrays_of<sr::SavedArray>(progress), values);
}

std::string Checkpoints::last() const {
  if (options_.checkpoint.empty()) return "there is no checkpoint (--checkpoint DIR)";
  if (!sr::Checkpoint::exists(options_.checkpoint)) return "there is no checkpoint yet";
  return "the last checkpoint is in " + options_.checkpoint.string();
}

}  // namespace resnet
