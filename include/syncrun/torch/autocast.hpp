#pragma once

// Autocast: LibTorch computes products and convolutions of a scope in a shorter floating-point type.

#include <torch/torch.h>

#include "syncrun/detail/export.hpp"

namespace syncrun::libtorch {

/// LibTorch's automatic mixed precision on the device of the body, during the lifetime of this object:
///
///   torch::Tensor loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> y) {
///     const sr::libtorch::Autocast autocast(torch::kBFloat16);
///     return torch::cross_entropy_loss(net.forward(sr::libtorch::tensor(x)), sr::libtorch::tensor(y));
///   }
///
/// LibTorch chooses the type of each operation: matrix products and convolutions get `type`, most losses get float32.
/// The parameters and their gradients stay float32. End the scope before the backward pass, as a loss does when it
/// returns. The destructor restores the former state, also after an exception. When the outermost object ends, LibTorch
/// forgets its converted copies of parameters, so the next step converts the new values. Objects can be nested. An
/// inner `Autocast(torch::kFloat32)` turns autocast off in its scope.
///
/// In float16, small gradients become 0, so a loss with kFloat16 needs a scaled step (scaled_step.hpp). Evaluations and
/// bodies of your own do not.
class SYNCRUN_EXPORT Autocast {
 public:
  /// Begins the scope. `type` is kBFloat16, kFloat16 or kFloat32. Throws Error (usage) for other types, for kFloat16 in a
  /// train step whose loss is not scaled, and for kFloat16 on a CPU device with a LibTorch before 2.4.
  explicit Autocast(::torch::ScalarType type);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  ::torch::DeviceType device_;
  bool was_enabled_;
  ::torch::ScalarType type_before_;
};

}  // namespace syncrun::libtorch
