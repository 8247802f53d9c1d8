#pragma once

// Convolutions of float32 on a CPU device, computed by oneDNN. Input and output are [rows, size, size, channels].
// Filters lie as ConvUnit says. If the build found no oneDNN, the constructor of the engine throws.

#include <cstddef>
#include <memory>

#include "demos/resnet/network/architecture.hpp"

namespace resnet {

/// The state that convolutions share: the device, and memory that they use one after the other. The memory grows to the
/// size that the largest convolution needs. Only one thread at a time may use an engine.
class ConvolutionEngine {
 public:
  /// Throws std::runtime_error if this program was built without oneDNN, or if oneDNN does not work on this machine.
  ConvolutionEngine();
  ConvolutionEngine(ConvolutionEngine&&) noexcept;
  ~ConvolutionEngine();

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// The convolution of a unit for a number of rows, at least one. Each pass is prepared when it is first called. The
/// engine must outlive this object. All calls return when their result is complete. Errors of oneDNN are
/// std::exceptions.
class CpuConvolution {
 public:
  CpuConvolution(ConvolutionEngine& engine, const ConvUnit& unit, std::size_t rows);
  CpuConvolution(CpuConvolution&&) noexcept;
  ~CpuConvolution();

  void forward(const float* x, const float* weights, float* y);
  void backward_data(const float* dy, const float* weights, float* dx);     // dx is overwritten
  void backward_weights(const float* x, const float* dy, float* dweights);  // dweights are overwritten

 private:
  struct Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace resnet
