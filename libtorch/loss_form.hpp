#pragma once

// What the graph of a loss says about its form: whether it is a sum, or a mean that leaves out targets.

#include <torch/torch.h>

#include <string>

namespace syncrun::libtorch::detail {

/// Looks at the loss functions of LibTorch whose values are added to the loss. Says why the loss is no mean over all its
/// rows or targets, and what to return instead. Empty: nothing was found. Finds ignored targets and class weights only on
/// a CPU device.
std::string why_no_mean(const ::torch::Tensor& loss);

}  // namespace syncrun::libtorch::detail
