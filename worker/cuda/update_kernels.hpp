#pragma once

// Update rules on a GPU: one fused kernel for each rule and type.

#include <cuda_runtime_api.h>

#include "syncrun/detail/update_work.hpp"

namespace syncrun::detail::kernels {

/// In stream order. Throws Error (cuda).
void apply_update(const UpdateWork& work, cudaStream_t stream);

}  // namespace syncrun::detail::kernels
