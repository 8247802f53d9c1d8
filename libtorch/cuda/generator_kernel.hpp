#pragma once

// Writes the state of LibTorch's generator to device memory, where graphs that draw random numbers read it.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncrun::libtorch::detail::kernels {

/// Loads the kernel of write_generator_state, which then allocates nothing.
cudaError_t load_generator_kernel();
/// Writes places[0] = seed and places[1] = offset, in stream order.
cudaError_t write_generator_state(std::int64_t* places, std::uint64_t seed, std::uint64_t offset, cudaStream_t stream);

}  // namespace syncrun::libtorch::detail::kernels
