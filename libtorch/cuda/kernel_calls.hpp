#pragma once

// Operations on tensors by Syncrun's own kernels.

#include "libtorch/gpu_operations.hpp"

namespace syncrun::libtorch::detail {

/// The operations of this process.
GpuOperations& gpu_operations();

}  // namespace syncrun::libtorch::detail
