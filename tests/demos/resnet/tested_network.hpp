#pragma once

// A network of ours, on a CPU or a CUDA device, with the parameters, statistics, images and labels of a reference.

#include <memory>
#include <string>
#include <vector>

#include "demos/resnet/architecture.hpp"
#include "demos/resnet/precision.hpp"

namespace resnet::testing {

class TestedNetwork {
 public:
  virtual ~TestedNetwork() = default;

  /// [rows, classes], by the statistics as they are.
  virtual std::vector<float> logits() = 0;
  /// The mean loss, with the references' label smoothing; moves the statistics.
  virtual double step() = 0;
  /// Of the last step.
  virtual std::vector<float> gradient() = 0;
  virtual std::vector<float> statistics() = 0;
  virtual void set_params(const std::vector<float>& params) = 0;
};

enum class Place { kCpu, kCuda };

/// On the first device. Throws std::runtime_error where this build has none of that kind, or none for that precision.
std::unique_ptr<TestedNetwork> make_network(Place place, const Architecture& architecture, std::size_t rows,
                                            Precision precision);

/// Devices of that kind, as CUDA counts them; of CPU devices as many as one wants.
int cuda_devices();

}  // namespace resnet::testing
