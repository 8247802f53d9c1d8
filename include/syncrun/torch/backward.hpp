#pragma once

// BackwardOptions: what a training step does while LibTorch's backward pass runs.

#include <cstdint>

namespace syncrun::libtorch {

/// When the ranks average the gradient.
enum class GradientAverage : std::uint8_t {
  after_backward,  ///< All of it, after the backward pass.
  during_backward  ///< The step is told which part is final while LibTorch computes the rest (see GradientReady).
};

/// How a step looks for numbers that are not finite. On a CPU device, it always checks the loss.
enum class FiniteCheck : std::uint8_t {
  loss,      ///< Only the loss.
  gradients  ///< Also the gradient of each parameter, as soon as LibTorch has computed it.
};

/// How a CUDA device runs the step.
enum class Replay : std::uint8_t {
  /// Captures the step as a CUDA graph and then launches the graph, if that is possible. The loss's host code does not
  /// run in these steps, so the loss must do the same in each step, apart from the values of its inputs. After train() or
  /// eval() of a submodule, or if another parameter requires a gradient, it runs again. If a step cannot be captured, the
  /// worker warns once and runs the host code in each step (see docs/libtorch.md, "Replay").
  if_possible,
  never  ///< Each step runs the loss's host code.
};

/// Options of a training step, as a template argument: `train_step<sr::Adam, loss, BackwardOptions{...}>`. An option
/// that is not used costs nothing.
struct BackwardOptions {
  /// With `during_backward`, a hook on each parameter reports its gradient. Parameters that the loss does not use are
  /// final at once. The step averages early only in the cases that gradient_ready.hpp names: on several CUDA devices.
  /// Elsewhere, the option has no effect on the result or the speed. A loss whose backward pass contains another
  /// backward pass (checkpointed activations) is an error, because it changes gradients that were final.
  GradientAverage average = GradientAverage::after_backward;
  /// With `gradients`, a step whose gradient is not finite throws Error (function). The message names the first such
  /// parameter in the order of the backward pass. Reads the gradient once more.
  /// On CUDA devices, `loss` checks nothing, because the host does not wait for the loss. The caller gets it as it is.
  FiniteCheck check = FiniteCheck::loss;
  /// For CUDA devices only.
  Replay replay = Replay::if_possible;

  friend bool operator==(const BackwardOptions&, const BackwardOptions&) = default;
};

}  // namespace syncrun::libtorch
