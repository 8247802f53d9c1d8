// What a build without oneDNN has in the place of a residual network on a CPU device: a constructor that says so.

#include <stdexcept>

#include "demos/resnet/cpu_network.hpp"

namespace resnet {

struct CpuNetwork::Work {};

CpuNetwork::CpuNetwork(const Architecture&) {
  throw std::runtime_error("residual network on a CPU device: expected a build with oneDNN, got one without");
}
CpuNetwork::CpuNetwork(CpuNetwork&&) noexcept = default;
CpuNetwork::~CpuNetwork() = default;

// There is no object to call these of.
std::span<const float> CpuNetwork::logits(std::span<const float>, std::span<const float>, std::span<const float>) {
  return {};
}
Outcome CpuNetwork::evaluate(std::span<const float>, std::span<const float>, std::span<const float>,
                             std::span<const std::int64_t>) {
  return {};
}
Outcome CpuNetwork::loss_and_gradient(std::span<const float>, std::span<float>, std::span<const float>,
                                      std::span<const std::int64_t>, const LossOptions&, const SumOverRanks&,
                                      std::span<float>) {
  return {};
}

}  // namespace resnet
