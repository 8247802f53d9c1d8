#pragma once

// Convolutions of float32 on a CPU device, through oneDNN: [rows, size, size, channels] in and out, filters as ConvUnit has
// them. Where the build found no oneDNN the engine's constructor says so.

#include <cstddef>
#include <memory>

#include "demos/resnet/architecture.hpp"

namespace resnet {

/// What convolutions share: the device, and memory that they use in turn, which grows with what the largest needs. One
/// engine serves one thread at a time.
class ConvolutionEngine {
 public:
  /// Throws std::runtime_error where this program was built without oneDNN, or oneDNN cannot be used here.
  ConvolutionEngine();
  ConvolutionEngine(ConvolutionEngine&&) noexcept;
  ~ConvolutionEngine();

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// A unit's convolution for a number of rows, at least one. What it needs is prepared when it is first asked for. It refers
/// to its engine, which outlives it. All calls return when the result is there. oneDNN's errors are std::exceptions.
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
