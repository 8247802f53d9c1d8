#include "demos/common/layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "demos/common/blas.hpp"
#include "demos/common/philox.hpp"

namespace demos {
namespace {

constexpr std::size_t kWordsPerDraw = 4;

/// Row, block of units, layer and step each have their own bits of the counter, so that no two draws share a counter.
PhiloxCounter dropout_counter(DropoutKey key, std::uint64_t row, std::size_t block) {
  return {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32),
          static_cast<std::uint32_t>(block) | std::uint32_t{key.layer} << 24, key.step};
}

template <typename T>
void dropout_row(std::uint64_t row, std::size_t units, double rate, DropoutKey key, const T* x, T* y) {
  const auto dropped_below = static_cast<std::uint32_t>(rate * 0x1p32);
  const T factor = static_cast<T>(1 / (1 - rate));
  for (std::size_t begin = 0; begin < units; begin += kWordsPerDraw) {
    const PhiloxCounter words = philox4x32_10(dropout_counter(key, row, begin / kWordsPerDraw), key.seed);
    const std::size_t count = std::min(kWordsPerDraw, units - begin);
    for (std::size_t i = 0; i < count; ++i) {
      y[begin + i] = words[i] >= dropped_below ? x[begin + i] * factor : T{0};
    }
  }
}

void check_label(std::uint8_t label, std::size_t classes) {
  if (label < classes) return;
  throw std::out_of_range("softmax_cross_entropy: expected labels below " + std::to_string(classes) + ", got " +
                          std::to_string(label));
}

/// The largest logit of a row, its index, and the sum over the row of exp(logit - largest).
template <typename T>
struct RowSoftmax {
  std::size_t best;
  T largest;
  T sum;
};

template <typename T>
RowSoftmax<T> softmax_row(std::size_t classes, const T* logits) {
  const T* best = std::max_element(logits, logits + classes);
  T sum = 0;
  for (std::size_t j = 0; j < classes; ++j) sum += std::exp(logits[j] - *best);
  return {static_cast<std::size_t>(best - logits), *best, sum};
}

template <typename T>
void softmax_gradient_row(std::size_t classes, const RowSoftmax<T>& row, std::uint8_t label, T weight, const T* logits,
                          T* dlogits) {
  for (std::size_t j = 0; j < classes; ++j) dlogits[j] = weight * std::exp(logits[j] - row.largest) / row.sum;
  dlogits[label] -= weight;
}

}  // namespace

template <typename T>
void dense_forward(std::size_t rows, DenseShape shape, Activation activation, const T* x, const T* weights,
                   const T* bias, T* y) {
  gemm(Transpose::kNo, Transpose::kNo, {rows, shape.outputs, shape.inputs}, x, weights, T{0}, y);
  add_bias(rows, shape.outputs, activation, bias, y);
}

template <typename T>
void dense_backward(std::size_t rows, DenseShape shape, const T* x, const T* weights, const T* dy, T* dweights,
                    T* dbias, T* dx) {
  gemm(Transpose::kYes, Transpose::kNo, {shape.inputs, shape.outputs, rows}, x, dy, T{0}, dweights);
  bias_backward(rows, shape.outputs, dy, dbias);
  if (dx == nullptr) return;
  gemm(Transpose::kNo, Transpose::kYes, {rows, shape.inputs, shape.outputs}, dy, weights, T{0}, dx);
}

template <typename T>
void add_bias(std::size_t rows, std::size_t units, Activation activation, const T* bias, T* y) {
  for (std::size_t row = 0; row < rows; ++row, y += units) {
    if (activation == Activation::kRelu) {
      for (std::size_t j = 0; j < units; ++j) y[j] = std::max(y[j] + bias[j], T{0});
    } else {
      for (std::size_t j = 0; j < units; ++j) y[j] += bias[j];
    }
  }
}

template <typename T>
void bias_backward(std::size_t rows, std::size_t units, const T* dy, T* dbias) {
  std::fill_n(dbias, units, T{0});
  for (std::size_t row = 0; row < rows; ++row, dy += units) {
    for (std::size_t j = 0; j < units; ++j) dbias[j] += dy[j];
  }
}

template <typename T>
void relu_backward(std::size_t elements, const T* y, T* dy) {
  for (std::size_t i = 0; i < elements; ++i) dy[i] = y[i] > T{0} ? dy[i] : T{0};
}

template <typename T>
void dropout(std::span<const std::int64_t> row_ids, std::size_t units, double rate, DropoutKey key, const T* x, T* y) {
  for (const std::int64_t row : row_ids) {
    dropout_row(static_cast<std::uint64_t>(row), units, rate, key, x, y);
    x += units;
    y += units;
  }
}

template <typename T>
Outcome softmax_cross_entropy(std::span<const std::uint8_t> labels, std::size_t classes, const T* logits, T* dlogits) {
  Outcome outcome;
  if (labels.empty()) return outcome;
  const T weight = T{1} / static_cast<T>(labels.size());
  for (const std::uint8_t label : labels) {
    check_label(label, classes);
    const RowSoftmax<T> row = softmax_row(classes, logits);
    outcome.mean_loss += static_cast<double>(std::log(row.sum) + (row.largest - logits[label]));
    outcome.correct += row.best == label ? 1 : 0;
    if (dlogits != nullptr) {
      softmax_gradient_row(classes, row, label, weight, logits, dlogits);
      dlogits += classes;
    }
    logits += classes;
  }
  outcome.mean_loss /= static_cast<double>(labels.size());
  return outcome;
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type cannot be in parentheses
#define DEMOS_INSTANTIATE(T)                                                                              \
  template void dense_forward<T>(std::size_t, DenseShape, Activation, const T*, const T*, const T*, T*);  \
  template void dense_backward<T>(std::size_t, DenseShape, const T*, const T*, const T*, T*, T*, T*);     \
  template void add_bias<T>(std::size_t, std::size_t, Activation, const T*, T*);                          \
  template void bias_backward<T>(std::size_t, std::size_t, const T*, T*);                                 \
  template void relu_backward<T>(std::size_t, const T*, T*);                                              \
  template void dropout<T>(std::span<const std::int64_t>, std::size_t, double, DropoutKey, const T*, T*); \
  template Outcome softmax_cross_entropy<T>(std::span<const std::uint8_t>, std::size_t, const T*, T*);
// NOLINTEND(bugprone-macro-parentheses)
DEMOS_INSTANTIATE(float)
DEMOS_INSTANTIATE(double)
#undef DEMOS_INSTANTIATE

}  // namespace demos
