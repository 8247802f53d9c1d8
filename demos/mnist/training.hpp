#pragma once

// What training is, whatever it runs on: the options of a step, and the parameters it starts from.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "demos/common/model.hpp"
#include "demos/common/network.hpp"

namespace mnist {

/// What a step needs besides arrays: the same values on every rank, where the device finds them.
struct StepOptions {
  double learning_rate;
  double momentum;
  demos::StepKey dropout;  // the masks' seed and step
};

/// The parameters that training starts from, a pure function of the seed. T is float or double. Master.
template <class T>
std::vector<T> initial_parameters(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                                  std::uint64_t seed);

}  // namespace mnist
