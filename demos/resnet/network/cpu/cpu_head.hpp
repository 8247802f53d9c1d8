#pragma once

// The end of the network on a CPU device: the dense layer and the loss, in float32.

#include <cstddef>
#include <cstdint>
#include <span>

#include "demos/resnet/network/network.hpp"

namespace resnet {

struct HeadShape {
  std::size_t rows;
  std::size_t features;
  std::size_t classes;
};

/// logits [rows, classes] = x [rows, features] weights^T + bias, where weights are [classes, features].
void dense(const HeadShape& shape, const float* x, const float* weights, const float* bias, float* logits);

/// dweights = dlogits^T x, dbias = the sum of dlogits over rows, dx = dlogits weights. All three are overwritten.
void dense_backward(const HeadShape& shape, const float* x, const float* weights, const float* dlogits, float* dweights,
                    float* dbias, float* dx);

/// The mean over rows of - sum_j t_j log softmax(z)_j with targets t = (1 - s) onehot(label) + s / classes, where s is
/// the label smoothing. If `dlogits` is not null, it becomes the gradient of that mean, (softmax(z) - t) / rows. It
/// must not be the same array as `logits`. Labels must be below `classes`, and there is one for each row. Source: C.
/// Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567, section 7.
Outcome smoothed_cross_entropy(std::span<const std::int64_t> labels, std::size_t classes, double smoothing,
                               const float* logits, float* dlogits);

}  // namespace resnet
