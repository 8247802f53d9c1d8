#pragma once

// The norm of a gradient on a GPU, for clipping.

#include <cuda_runtime_api.h>

#include "syncrun/detail/update_work.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

/// Writes the sum of the squares of work.gradient, without the frozen parts of work.plan, to `squares` in device memory.
/// In stream order. The result has the same bits in each run. Only one stream of a device may use this function. Throws
/// Error (cuda).
void sum_squares(const UpdateWork& work, double* squares, cudaStream_t stream);
/// Replaces a number in device memory by its square root, divided by another one there, in stream order. Throws Error
/// (cuda).
void take_root(double* number, const double* divisor, cudaStream_t stream);

/// See load_kernels.
void load_norm_kernels();

}  // namespace syncrun::detail::worker::devices::cuda::kernels
