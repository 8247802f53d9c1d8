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
// On a CUDA device, they compute the same as LibTorch's with fewer and faster kernels. The sums of these kernels are in
// float32 for bfloat16, and their order does not change from run to run. Second derivatives are not supported there. On
// a CPU device, and for types, shapes and sizes for which Syncrun has no kernel, these are LibTorch's functions, with
// their errors. The only difference in type is that of normalizations with Autocast.

/// x * weight^T + bias. `x` is [..., inputs], `weight` is [outputs, inputs], and `bias` is [outputs] or undefined.
///
/// On a CUDA device, one sum over the rows gives the gradient of `bias`. With Autocast and LibTorch 2.8 or later, the
/// matrix product that gives the gradient of `weight` writes float32. Otherwise it writes bfloat16, and a further
/// kernel converts it, as in LibTorch's function. With Autocast, one kernel converts all parameters of a replica with
/// at most 2^24 elements. A parameter that `forward` changes is then converted by itself.
SYNCRUN_EXPORT ::torch::Tensor linear(const ::torch::Tensor& x, const ::torch::Tensor& weight,
                                      const ::torch::Tensor& bias = {});

/// Normalizes the last dimension: (x - mean) / sqrt(variance + epsilon) * weight + bias. The variance is that of all
/// elements (divided by their number). `x` is [..., width]. `weight` and `bias` are [width], or undefined.
///
/// With Autocast, the result has its type, unless `x` is float64. LibTorch's result is float32, and the matrix product
/// that reads it converts it. Use torch::layer_norm if something other than a product needs the digits of float32, as
/// in x = norm(x + f(x)).
SYNCRUN_EXPORT ::torch::Tensor layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& weight,
                                          const ::torch::Tensor& bias, double epsilon = 1e-5);

/// What add_layer_norm() returns.
struct SumAndNorm {
  ::torch::Tensor sum;   ///< x + change.
  ::torch::Tensor norm;  ///< layer_norm() of the sum.
};

/// x + change, and layer_norm() of this sum. This is what a transformer does between two of its layers:
///
///   auto [sum, norm] = lt::add_layer_norm(x, attention_->forward(before), norm_->weight, norm_->bias);
///   return sum + mlp_->forward(norm);
///
/// `x` and `change` are [..., width]. Otherwise the arguments are those of layer_norm().
///
/// On a CUDA device, one kernel writes both results if `x` and `change` have equal sizes. In the backward pass, one
/// kernel adds the gradients of both, and writes them in the types of `x` and `change`. With Autocast, these are often
/// float32 and bfloat16.
SYNCRUN_EXPORT SumAndNorm add_layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& change,
                                         const ::torch::Tensor& weight, const ::torch::Tensor& bias,
                                         double epsilon = 1e-5);

/// The rows of `table` [vocabulary, width] that `tokens` choose: [tokens..., width]. `tokens` is int64 and has any
/// shape.
///
/// On a CUDA device, the gradient is computed without sorting the tokens if the vocabulary is at most 8,192 and
/// vocabulary * tokens is at most 2^24.
SYNCRUN_EXPORT ::torch::Tensor embedding(const ::torch::Tensor& tokens, const ::torch::Tensor& table);

}  // namespace syncrun::libtorch
