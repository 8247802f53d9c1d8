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
  /// As a CUDA graph, if that is possible. The first steps with some shapes run the loss, the next ones are captured, and
  /// later ones launch the graph (see replayable() in detail/signature.hpp). The loss's host code does not run then. It must
  /// do the same in each step, apart from the values of its inputs. If a step cannot be captured, because the loss waits for
  /// a value or draws random numbers on the GPU, the worker warns once, and all steps run the host code. A loss with a
  /// parameter by value or a Comm&, or with a result beside the loss, is not captured. Nor is a step with other options of
  /// BackwardOptions.
  if_possible,
  never  ///< Each step runs the loss's host code.
};

/// Options of a training step, as a template argument: `train_step<sr::Adam, loss, BackwardOptions{...}>`. An option that
/// is not used costs nothing.
struct BackwardOptions {
  /// With `during_backward`, a hook on each parameter reports its gradient. Parameters that the loss does not use are
  /// final at once. The step averages early only in the cases that gradient_ready.hpp names: on several CUDA devices.
  /// Elsewhere, the option has no effect on the result or the speed. A loss whose backward pass contains another backward
  /// pass (checkpointed activations) is an error, because it changes gradients that were final.
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
