#pragma once

// The name of the hardware that computes.

#include <string>
#include <syncrun/syncrun.hpp>

namespace gpt {

/// The model of the GPU of rank 0, such as "NVIDIA H200". Empty if rank 0 is a CPU device. The master calls it.
std::string hardware_name(syncrun::Session& session);

}  // namespace gpt
