#pragma once

// The step that this thread runs, for modules that compute with all ranks.

#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// The scope of the innermost Guard on this thread. Null in a program without Syncrun, and in the master.
const StepScope* step_scope() noexcept;

}  // namespace syncrun::libtorch::detail
