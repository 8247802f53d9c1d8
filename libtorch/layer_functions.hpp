#pragma once

// The layers of layers.hpp for LibTorch's autograd, with the kernels of GpuOperations. The tests run them on CPU devices,
// with a fake of these kernels.

#include <torch/torch.h>

#include "libtorch/gpu_operations.hpp"
#include "syncrun/torch/layers.hpp"

namespace syncrun::libtorch::detail {

/// The type in which an operation that autocast converts computes with a tensor.
::torch::ScalarType type_here(const ::torch::Tensor& tensor);

// Whether there are kernels for these arguments. LibTorch's functions handle all others, and say what is wrong.
bool can_multiply(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias);
bool can_normalize(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias);
bool can_add(const ::torch::Tensor& x, const ::torch::Tensor& change);
bool can_choose(const ::torch::Tensor& tokens, const ::torch::Tensor& table);

/// The arguments of a sum.
struct Summands {
  ::torch::Tensor x;
  ::torch::Tensor change;
};

// These are for arguments that have kernels. `operations` lives longer than the result. `bias` may be undefined, and so may
// the weight of a normalization.
::torch::Tensor multiply(GpuOperations& operations, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                         const ::torch::Tensor& bias);
::torch::Tensor normalize(GpuOperations& operations, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                          const ::torch::Tensor& bias, double epsilon);
SumAndNorm add_and_normalize(GpuOperations& operations, const Summands& summands, const ::torch::Tensor& weight,
                             const ::torch::Tensor& bias, double epsilon);
::torch::Tensor choose(GpuOperations& operations, const ::torch::Tensor& tokens, const ::torch::Tensor& table);

}  // namespace syncrun::libtorch::detail
