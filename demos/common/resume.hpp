#pragma once

// Whether a training begins anew or goes on from a checkpoint. The demos with checkpoints have the same options for it.

#include <filesystem>

#include "demos/common/usage_error.hpp"

namespace demos {

/// The folder of --checkpoint, and why a training may have to go on from there.
struct CheckpointFolder {
  std::filesystem::path path;
  bool has_checkpoint = false;
  bool resume = false;        // --resume was given
  bool is_restarted = false;  // a script or `syncrun` has started the program again
};

/// True if the training goes on from the checkpoint in the folder. Throws UsageError: --resume was given, but there is no
/// checkpoint; or there is one, and nothing says that the training goes on.
inline bool goes_on(const CheckpointFolder& folder) {
  if (folder.resume && !folder.has_checkpoint && !folder.is_restarted) {
    throw UsageError("--resume: expected a checkpoint in " + folder.path.string() + ", got none");
  }
  if (folder.has_checkpoint && !folder.resume && !folder.is_restarted) {
    throw UsageError("--checkpoint: expected a folder without a checkpoint, got " + folder.path.string() +
                     " (--resume goes on from what is there)");
  }
  return folder.has_checkpoint;
}

}  // namespace demos
