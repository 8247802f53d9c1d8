#pragma once

#include "libtorch/gpu_operations.hpp"

namespace syncrun::libtorch::detail {

/// The operations of this process.
GpuOperations& gpu_operations();

}  // namespace syncrun::libtorch::detail
