// Implements cpu_convolution.hpp for builds without oneDNN.

#include <stdexcept>

#include "demos/resnet/network/cpu/cpu_convolution.hpp"

namespace resnet {

struct ConvolutionEngine::State {};
struct CpuConvolution::Steps {};

ConvolutionEngine::ConvolutionEngine() {
  throw std::runtime_error(
      "a residual network on a CPU device needs oneDNN, and this program was built without it: install it (Debian's "
      "and "
      "Ubuntu's libdnnl-dev) and build again, or choose CUDA devices");
}
ConvolutionEngine::ConvolutionEngine(ConvolutionEngine&&) noexcept = default;
ConvolutionEngine::~ConvolutionEngine() = default;

CpuConvolution::CpuConvolution(ConvolutionEngine&, const ConvUnit&, std::size_t) {}
CpuConvolution::CpuConvolution(CpuConvolution&&) noexcept = default;
CpuConvolution::~CpuConvolution() = default;

void CpuConvolution::forward(const float*, const float*, float*) {}
void CpuConvolution::backward_data(const float*, const float*, float*) {}
void CpuConvolution::backward_weights(const float*, const float*, float*) {}

}  // namespace resnet
