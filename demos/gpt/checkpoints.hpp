#pragma once

// The checkpoints of the program. A checkpoint holds everything that the next step depends on. So an interrupted run that
// continues from a checkpoint has the same losses as a run without interruption, if it has as many workers. With --sharded,
// the arrays are safetensors files in a folder beside the checkpoint, so that another number of workers can load them.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/gpt/options.hpp"
#include "demos/gpt/token_files.hpp"

namespace gpt {

namespace sr = syncrun;

using Vector = sr::Shared<float, 1>;

/// What changes from step to step, except the gradient, which each step computes anew.
struct Progress {
  Vector params;
  std::array<Vector, 2> state;  // of AdamW
  // With Sharding::kModel: write and read one of them, unit by unit.
  std::function<void(const Vector&, const std::filesystem::path&)> save_units{};
  std::function<void(Vector&, const std::filesystem::path&)> load_units{};
};

class Checkpoints {
 public:
  /// Opens the checkpoint in the folder of `options`, if there is one. The program calls this before it starts any
  /// worker. Throws UsageError in three cases: the checkpoint is from another model, form of the state, seed or text;
  /// training is to continue but there is no checkpoint; training is to start anew but there is one.
  Checkpoints(const Options& options, const TokenFiles& files);

  /// Whether training continues from a checkpoint, which resume() has not loaded yet.
  bool will_resume() const noexcept { return found_.has_value(); }
  /// Restores the saved state, if training continues from a checkpoint. Returns the number of finished steps, 0 without
  /// a checkpoint.
  std::int64_t resume(const Progress& progress);
  /// Saves a checkpoint if the options ask for one after this number of steps, or if the program is told to stop. Returns
  /// true if the program has to stop.
  bool save(std::int64_t steps, const Progress& progress);

 private:
  void save_units(std::int64_t steps, const Progress& progress, const std::vector<sr::SavedValue>& values) const;

  const Options& options_;
  std::vector<sr::SavedValue> identity_;
  std::optional<sr::Checkpoint> found_;
};

}  // namespace gpt
