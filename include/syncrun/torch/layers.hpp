#pragma once

// Layers of transformers with gradients that Syncrun's own kernels compute on a GPU.

#include <torch/torch.h>

#include "syncrun/detail/export.hpp"

namespace syncrun::libtorch {

// Use these functions in `forward` in place of LibTorch's functions and of the `forward` of its modules:
//
//   torch::Tensor forward(const torch::Tensor& x) {
//     const auto normal = lt::layer_norm(x, norm_->weight, norm_->bias);
//     return x + lt::linear(normal, layer_->weight, layer_->bias);
//   }
//
// On a CPU device, they are LibTorch's functions. On a CUDA device, they compute the same with fewer and faster kernels.
// Sums are in float32, also for bfloat16. Equal inputs give equal bits. Second derivatives are not supported there. Types
// and shapes for which Syncrun has no kernel go to LibTorch. Errors are LibTorch's.

/// x * weight^T + bias. `x` is [..., inputs], `weight` is [outputs, inputs], and `bias` is [outputs] or undefined.
///
/// On a CUDA device, one sum over the rows gives the gradient of `bias`. With Autocast, the matrix product that gives
/// the gradient of `weight` writes float32. LibTorch writes bfloat16 and converts that in a further kernel.
SYNCRUN_EXPORT ::torch::Tensor linear(const ::torch::Tensor& x, const ::torch::Tensor& weight,
                                      const ::torch::Tensor& bias = {});

/// Normalizes the last dimension: (x - mean) / sqrt(variance + epsilon) * weight + bias. The variance is that of all
/// elements (divided by their number). `x` is [..., width]. `weight` and `bias` are [width], or undefined.
///
/// With Autocast, the result has the type of Autocast, if `x` is float32. The matrix product that reads the result would
/// convert it to this type. LibTorch's result is float32.
SYNCRUN_EXPORT ::torch::Tensor layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& weight,
                                          const ::torch::Tensor& bias, double epsilon = 1e-5);

/// The rows of `table` [vocabulary, width] that `tokens` choose: [tokens..., width]. `tokens` is int64 and has any shape.
///
/// On a CUDA device, if vocabulary * tokens is at most 2^24, the gradient does without sorting the tokens.
SYNCRUN_EXPORT ::torch::Tensor embedding(const ::torch::Tensor& tokens, const ::torch::Tensor& table);

}  // namespace syncrun::libtorch
