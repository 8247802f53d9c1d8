#pragma once

// What gpu_program.cpp needs of GPUs. There is one implementation for fake GPUs and one for real ones.

#include <cstddef>
#include <syncrun/syncrun.hpp>

namespace node_test {

/// Copies within the memory of the device, in the order of the worker's stream.
void copy_on_device(syncrun::CudaWorker& worker, float* to, const float* from, std::size_t elements);
/// Whether the GPUs are real. The fake ones have no collectives besides all_reduce.
bool are_real() noexcept;

}  // namespace node_test
