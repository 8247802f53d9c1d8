#pragma once

// The interface of what is computed again: what checkpoint() calls in libsyncrun_torch.so. Users never name anything in
// this header.

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "syncrun/detail/export.hpp"

namespace syncrun::libtorch {

namespace detail {

using Tensors = std::vector<::torch::Tensor>;
/// A function of tensors, without their types.
using TensorFunction = std::function<Tensors(const Tensors&)>;

/// Work that the backward pass repeats. The other functions are called around the backward pass of the repetition, and
/// can be empty.
struct RepeatedWork {
  TensorFunction run;
  std::function<void()> before_backward{};
  std::function<void()> after_backward{};
};
/// Runs the work without recording it, and records a node that repeats it.
SYNCRUN_EXPORT Tensors run_repeatedly(RepeatedWork work, const Tensors& inputs);

}  // namespace detail

}  // namespace syncrun::libtorch
