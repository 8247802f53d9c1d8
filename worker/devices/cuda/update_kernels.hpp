#pragma once

// Update rules on a GPU: one fused kernel for each rule and type.

#include <cuda_runtime_api.h>

#include "syncrun/detail/update_work.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

/// Applies an update rule, in stream order. Throws Error (cuda).
void apply_update(const UpdateWork& work, cudaStream_t stream);

/// See load_kernels.
void load_update_kernels();

}  // namespace syncrun::detail::worker::devices::cuda::kernels
