#pragma once

// The speed that the maker of a GPU states, which a training is compared with.

#include <optional>
#include <string_view>

namespace gpt {

/// The floating-point operations per second of dense matrix products in bfloat16, for a name as cudaGetDeviceProperties()
/// gives it, such as "NVIDIA H200". Nothing for other devices. Source: NVIDIA's data sheets of A100, H100 and H200.
std::optional<double> bfloat16_peak(std::string_view name);

}  // namespace gpt
