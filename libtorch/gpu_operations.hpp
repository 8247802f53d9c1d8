#pragma once

// Operations that Syncrun's own kernels compute on a GPU, on tensors.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace syncrun::libtorch::detail {

/// What cross_entropy() computes: scalars but for `sums`, which has two numbers for each row. For its gradient, `loss` is
/// the gradient of the loss.
struct CrossEntropyParts {
  ::torch::Tensor loss;
  ::torch::Tensor sums;
  ::torch::Tensor count;
};

/// What layer_norm() computes: the sum x + change (x itself if there is no change), y in the shape of x, and for each row of
/// the sum its mean and 1 / sqrt(variance + epsilon).
struct NormalizedRows {
  ::torch::Tensor sum;
  ::torch::Tensor y;
  ::torch::Tensor means;
  ::torch::Tensor scales;
};

/// The arguments of layer_norm(). `change`, `weight` and `bias` may be undefined. The types of `change` and of y are that of
/// x, or bfloat16 for float32.
struct NormalizationArguments {
  ::torch::Tensor x;
  ::torch::Tensor change;
  ::torch::Tensor weight;
  ::torch::Tensor bias;
  double epsilon = 0;
  ::torch::ScalarType type_of_y{};
};

/// The gradients that layer_norm_gradient() reads: of y, and of the sum, which may be undefined. They have the types of these
/// results. `type_of_change` is that of the gradient of the change.
struct UpstreamGradients {
  ::torch::Tensor of_y;
  ::torch::Tensor of_sum;
  ::torch::ScalarType type_of_change{};
};

/// Both have the same numbers. If x and change have the same type, they are one tensor.
struct SummandGradients {
  ::torch::Tensor of_x;
  ::torch::Tensor of_change;
};

struct WeightGradients {
  ::torch::Tensor of_weight;
  ::torch::Tensor of_bias;
};

/// All tensors are contiguous, on one GPU, and have at least one element. Operations work in the order of LibTorch's
/// current stream, and throw Error (cuda). Sums are float64 for float64, otherwise float32. Their order depends only on
/// sizes and on the alignment of addresses.
class GpuOperations {
 public:
  GpuOperations() = default;
  GpuOperations(const GpuOperations&) = delete;
  GpuOperations& operator=(const GpuOperations&) = delete;
  virtual ~GpuOperations() = default;

  virtual CrossEntropyParts cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                          std::int64_t ignore_index) = 0;
  virtual ::torch::Tensor cross_entropy_gradient(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                                 const CrossEntropyParts& parts, std::int64_t ignore_index) = 0;
  virtual NormalizedRows layer_norm(const NormalizationArguments& arguments) = 0;
  /// The gradients of x and change. Here and below, `rows` is what layer_norm returned. Of the arguments, only the weight and
  /// the type of y are read. y is not read.
  virtual SummandGradients layer_norm_gradient(const NormalizationArguments& arguments, const NormalizedRows& rows,
                                               const UpstreamGradients& upstream) = 0;
  /// The gradients of weight and bias. `dy` has the type of y.
  virtual WeightGradients layer_norm_sums(const NormalizationArguments& arguments, const NormalizedRows& rows,
                                          const ::torch::Tensor& dy) = 0;
  /// The sums of the columns of a matrix.
  virtual ::torch::Tensor column_sums(const ::torch::Tensor& matrix) = 0;
  /// The gradient [vocabulary, width] of a table from which `tokens` has chosen the rows of dy.
  virtual ::torch::Tensor embedding_gradient(const ::torch::Tensor& tokens, const ::torch::Tensor& dy,
                                             std::int64_t vocabulary) = 0;
  /// Calls each of them. In a graph that is being captured, their operations may run at the same time, and later ones come
  /// after all. None may read or write what another one writes. The tensors that they read must live until this function
  /// returns. One thread calls it at a time.
  virtual void side_by_side(const std::vector<std::function<void()>>& works) = 0;
};

}  // namespace syncrun::libtorch::detail
