#pragma once

// The initial values of the parameters and of the running statistics.

#include <cstdint>
#include <vector>

#include "demos/resnet/network/architecture.hpp"

namespace resnet {

/// The initial scale of the last normalisation of each block.
enum class ResidualScale {
  kOne,
  kZero,  // at the start, the output of each block is that of its shortcut alone
};

/// The initial parameters: float32 [parameter_count], a pure function of the arguments. Filters are drawn from a normal
/// distribution with variance 2 / (channels_out kernel^2). Scales are 1, except where `last_scale` says otherwise, and
/// shifts are 0. The weights and biases of the dense layer are drawn uniformly from +-1 / sqrt(features). The gaps
/// between arrays are 0. Sources: K. He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, equation 14 (its
/// variant for the backward pass); P. Goyal et al., arXiv 1706.02677, section 5.1 (scale 0); the dense layer is as
/// PyTorch's Linear.
std::vector<float> initial_parameters(const Architecture& architecture, std::uint64_t seed, ResidualScale last_scale);

/// The initial statistics: float32 [statistics_count]. Running means are 0, and running variances are 1.
std::vector<float> initial_statistics(const Architecture& architecture);

}  // namespace resnet
