#pragma once

// What training starts from.

#include <cstdint>
#include <vector>

#include "demos/resnet/architecture.hpp"

namespace resnet {

/// The scale of the last normalisation of each block at the start.
enum class ResidualScale {
  kOne,
  kZero,  // each block begins as its shortcut alone
};

/// float32 [parameter_count], a pure function of the seed. Filters are normal with variance 2 / (channels_out kernel^2);
/// scales 1, shifts 0; the dense layer's weights and biases uniform within 1 / sqrt(features); what lies between arrays
/// 0. Source: K. He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, equation 14 (its variant for the backward
/// pass); P. Goyal et al., arXiv 1706.02677, section 5.1 (scale 0); the dense layer as PyTorch's Linear.
std::vector<float> initial_parameters(const Architecture& architecture, std::uint64_t seed, ResidualScale last_scale);

/// float32 [statistics_count]: running means 0, running variances 1.
std::vector<float> initial_statistics(const Architecture& architecture);

}  // namespace resnet
