#pragma once

// A residual network of the demo, on a CPU or a CUDA device, with the parameters, statistics, images and labels of a
// reference.

#include <memory>
#include <string>
#include <vector>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/precision.hpp"

namespace resnet::testing {

class TestedNetwork {
 public:
  virtual ~TestedNetwork() = default;

  /// The logits [rows, classes], computed with the current running statistics.
  virtual std::vector<float> logits() = 0;
  /// Computes loss and gradient, and returns the mean loss with the references' label smoothing. Moves the running
  /// statistics.
  virtual double step() = 0;
  /// The gradient of the last step.
  virtual std::vector<float> gradient() = 0;
  virtual std::vector<float> statistics() = 0;
  virtual void set_params(const std::vector<float>& params) = 0;
};

enum class Place { kCpu, kCuda };

/// Makes a network on the first device. Throws std::runtime_error if this build supports no such device, or not with
/// that precision.
std::unique_ptr<TestedNetwork> make_network(Place place, const Architecture& architecture, std::size_t rows,
                                            Precision precision);

}  // namespace resnet::testing
