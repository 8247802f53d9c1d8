#pragma once

// Marks bodies whose work on a GPU can be recorded once and replayed.

#include "syncrun/detail/worker_interface.hpp"

namespace syncrun {

/// A body that replayable() or replayable_if_possible() has marked.
template <class F, detail::Capture kCapture = detail::Capture::required>
struct Replayable {
  F body;
};

/// Marks a body whose work on the device is the same whenever the shapes are the same. On a CUDA device, the first call
/// with some shapes and addresses runs the body. The second captures what the body puts on its stream (kernels, cuBLAS,
/// NCCL) into a CUDA graph. Later calls launch the graph, and the body's host code does not run. So a number that
/// changes is a DeviceScalar<T>, parameters by value do not compile, and results are arrays or
/// Output::in_device_memory. On a CPU device, the body runs like any other.
///
/// If the object of a method has a public member `std::span<const std::uint64_t> replay_state()`, a graph is for one state
/// only: host code that reads what changes between calls, such as a mode, runs again when it has changed. The worker copies
/// the state when a call begins. A state that is new in each call keeps the function from being replayed. The worker warns
/// once about it.
///
///   auto step = session.function(&Trainer::cpu_step, syncrun::replayable(&Trainer::cuda_step), trainer);
template <class F>
constexpr Replayable<F> replayable(F body) noexcept {
  return {body};
}
/// The same for a body that may contain something that cannot be captured, such as a wait for its stream. If the capture
/// fails on a rank, that call and later calls of the function run the body's host code on all ranks. The worker logs the
/// reason once, as a warning. The body must then be able to run again after it was stopped in the middle.
///
/// It may have parameters by value. A graph is then for the same values only: a value that changes in each call keeps the
/// function from being replayed, so pass it as a DeviceScalar. The worker warns once about it.
template <class F>
constexpr Replayable<F, detail::Capture::if_possible> replayable_if_possible(F body) noexcept {
  return {body};
}

}  // namespace syncrun
