#pragma once

// The step that this thread runs, for modules that compute with all ranks.

#include <cstdint>

#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// The scope of the innermost Guard on this thread. Null in a program without Syncrun, and in the master.
const StepScope* step_scope() noexcept;

/// Whether the loss that this thread computes is scaled. `unknown`: it computes no loss of a train step.
enum class LossScale : std::uint8_t { unknown, none, scaled };
LossScale loss_scale() noexcept;
/// A train step begins. The Guard of the body ends it.
void note_loss_scale(LossScale scale) noexcept;

/// In its lifetime, this thread has a scope, unless it is null.
class ScopeOfThread {
 public:
  explicit ScopeOfThread(const StepScope* scope) noexcept;
  ~ScopeOfThread();
  ScopeOfThread(const ScopeOfThread&) = delete;
  ScopeOfThread& operator=(const ScopeOfThread&) = delete;

 private:
  const StepScope* before_;
};

/// What makes LibTorch record a checkpoint() whose inputs need no gradient. A backward pass to some of the parameters names
/// it too, or it would leave checkpoints out.
const ::torch::Tensor& checkpoint_ticket();

}  // namespace syncrun::libtorch::detail
