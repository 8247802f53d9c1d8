#include "demos/resnet/network/cpu/cpu_head.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "demos/common/blas.hpp"
#include "demos/common/layers.hpp"

namespace resnet {
namespace {

using demos::Transpose;

/// The softmax of a row is exp(z - largest) / sum.
struct RowSoftmax {
  std::size_t best;
  double largest;
  double sum;
  double log_probability(float logit) const { return static_cast<double>(logit) - largest - std::log(sum); }
};

RowSoftmax softmax_row(std::size_t classes, const float* logits) {
  const float* best = std::max_element(logits, logits + classes);
  const auto add = [&](double sum, float z) {
    return sum + std::exp(static_cast<double>(z) - static_cast<double>(*best));
  };
  return {static_cast<std::size_t>(best - logits), static_cast<double>(*best),
          std::accumulate(logits, logits + classes, 0.0, add)};
}

/// The gradient of the loss of one row, times `weight`.
void gradient_row(const RowSoftmax& row, std::size_t classes, std::size_t label, double smoothing, double weight,
                  const float* logits, float* dlogits) {
  const double every = smoothing / static_cast<double>(classes);
  for (std::size_t j = 0; j < classes; ++j) {
    const double target = every + (j == label ? 1 - smoothing : 0.0);
    dlogits[j] =
        static_cast<float>(weight * (std::exp(static_cast<double>(logits[j]) - row.largest) / row.sum - target));
  }
}

double loss_of_row(const RowSoftmax& row, std::size_t classes, std::size_t label, double smoothing,
                   const float* logits) {
  const double mean = std::accumulate(logits, logits + classes, 0.0) / static_cast<double>(classes);
  const double mean_log_probability = mean - row.largest - std::log(row.sum);
  return -(1 - smoothing) * row.log_probability(logits[label]) - smoothing * mean_log_probability;
}

}  // namespace

void dense(const HeadShape& shape, const float* x, const float* weights, const float* bias, float* logits) {
  const auto [rows, features, classes] = shape;
  demos::gemm(Transpose::kNo, Transpose::kYes, {rows, classes, features}, x, weights, 0.0F, logits);
  demos::add_bias(rows, classes, demos::Activation::kNone, bias, logits);
}

void dense_backward(const HeadShape& shape, const float* x, const float* weights, const float* dlogits, float* dweights,
                    float* dbias, float* dx) {
  const auto [rows, features, classes] = shape;
  demos::gemm(Transpose::kYes, Transpose::kNo, {classes, features, rows}, dlogits, x, 0.0F, dweights);
  demos::bias_backward(rows, classes, dlogits, dbias);
  demos::gemm(Transpose::kNo, Transpose::kNo, {rows, features, classes}, dlogits, weights, 0.0F, dx);
}

Outcome smoothed_cross_entropy(std::span<const std::int64_t> labels, std::size_t classes, double smoothing,
                               const float* logits, float* dlogits) {
  Outcome outcome;
  const double weight = 1 / std::max(static_cast<double>(labels.size()), 1.0);
  for (std::size_t i = 0; i < labels.size(); ++i, logits += classes) {
    const auto label = static_cast<std::size_t>(labels[i]);
    const RowSoftmax row = softmax_row(classes, logits);
    outcome.mean_loss += weight * loss_of_row(row, classes, label, smoothing, logits);
    outcome.correct += row.best == label ? 1 : 0;
    if (dlogits != nullptr) gradient_row(row, classes, label, smoothing, weight, logits, dlogits + i * classes);
  }
  return outcome;
}

}  // namespace resnet
