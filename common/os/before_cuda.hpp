#pragma once

// What a library that bodies use has to load before Syncrun loads its own library for CUDA devices. A process has one
// cuBLAS, one cuDNN and one NCCL: those that are loaded first.

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::os {

/// Loads libraries. Throws nothing: what cannot be loaded is reported when it is used.
using LoadLibraries = void (*)();

/// A worker with a GPU calls `load` before it loads Syncrun's library for CUDA devices. Only one library can ask for this.
/// May be called while global variables are initialized.
SYNCRUN_EXPORT_FOR_CUDA void load_before_cuda(LoadLibraries load) noexcept;

/// Calls what was given to load_before_cuda(), if anything was.
void load_what_comes_before_cuda();

}  // namespace syncrun::detail::os
