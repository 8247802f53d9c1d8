#pragma once

// The cross-entropy of models with many classes, such as language models.

#include <torch/torch.h>

#include <cstdint>

#include "syncrun/detail/export.hpp"
#include "syncrun/torch/weighted_loss.hpp"

namespace syncrun::libtorch {

/// The mean cross-entropy of the softmax of `scores` and of `targets`, in nats. Use it in place of
/// torch::cross_entropy_loss in a loss or an evaluation:
///
///   return lt::cross_entropy(net.forward(tokens), targets);
///
/// `scores` (logits) is [..., classes] of type float32, float64 or bfloat16. `targets` is int64, has the same shape
/// without the last dimension, and is on the same device. All targets count: LibTorch's -100 is no class here. The
/// result is one number: float64 for float64 scores, otherwise float32. It is NaN if there are no targets.
///
/// On a CUDA device, one kernel reads the scores, and another one writes their gradient. A target outside [0, classes)
/// makes the result and the gradient of its row NaN. Second derivatives are not supported. LibTorch's function makes
/// several float32 arrays of the size of the scores there, and rounds the logarithms of bfloat16 scores to bfloat16.
///
/// On a CPU device, this is LibTorch's function in the type of the result. A target outside [0, classes) is an error.
/// Throws Error (usage) for other types, shapes or devices.
SYNCRUN_EXPORT ::torch::Tensor cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets);

/// The same for targets of which some do not count, such as padding:
///
///   lt::WeightedLoss loss(Net& net, sr::Scattered<const std::int64_t, 2> tokens, ...) {
///     return lt::cross_entropy(net.forward(lt::tensor(tokens)), targets, kPadding);
///   }
///
/// Targets equal to `ignore_index` do not count. `class_weights` is [classes] of a floating-point type: how much a
/// target of each class counts. Without it, each target counts 1. The count of the result is the number of the targets
/// that count, or the sum of their weights. If no target counts, the sum and its gradient are 0. Throws Error (usage)
/// for weights of another shape. With weights, LibTorch's functions compute the loss on a GPU too. A target that is no
/// class is then an error of the GPU, and the worker is lost.
SYNCRUN_EXPORT WeightedLoss cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                          std::int64_t ignore_index, const ::torch::Tensor& class_weights = {});

}  // namespace syncrun::libtorch
