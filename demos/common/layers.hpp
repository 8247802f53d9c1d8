#pragma once

// The layers of a multilayer perceptron as pure functions on row-major arrays: forward, and backward from the
// gradient of the loss with respect to the output. T is float or double. Nothing here allocates or keeps
// state; zero rows are legal everywhere. Convolutions are in convolution.hpp.

#include <cstddef>
#include <cstdint>
#include <span>

namespace demos {

enum class Activation { kNone, kRelu };

struct DenseShape {
  std::size_t inputs;
  std::size_t outputs;
};

/// y [rows, outputs] = activation(x [rows, inputs] weights [inputs, outputs] + bias [outputs]).
/// Source: I. Goodfellow, Y. Bengio, A. Courville, "Deep Learning", 2016, section 6.4, equation 6.40.
template <typename T>
void dense_forward(std::size_t rows, DenseShape shape, Activation activation, const T* x, const T* weights,
                   const T* bias, T* y);

/// The gradients of dense_forward, `dy` being that of the sum before the activation (see relu_backward):
/// dweights = x^T dy, dbias = sum of dy over rows, dx = dy weights^T. All are overwritten; `dx` may be null
/// where nobody needs it. Source: Goodfellow et al., 2016, section 6.5.6.
template <typename T>
void dense_backward(std::size_t rows, DenseShape shape, const T* x, const T* weights, const T* dy, T* dweights,
                    T* dbias, T* dx);

/// y [rows, units] = activation(y + bias [units]) in one pass: what ends a dense layer and a convolution
/// alike.
template <typename T>
void add_bias(std::size_t rows, std::size_t units, Activation activation, const T* bias, T* y);

/// dbias [units] = sum of dy [rows, units] over rows.
template <typename T>
void bias_backward(std::size_t rows, std::size_t units, const T* dy, T* dbias);

/// dy = dy where y > 0, else 0, given the output y = max(0, x) of a rectifier.
/// Source: X. Glorot, A. Bordes, Y. Bengio, "Deep Sparse Rectifier Neural Networks", AISTATS 2011, section 3.
template <typename T>
void relu_backward(std::size_t elements, const T* y, T* dy);

/// What a dropout mask is drawn from, together with the row and the unit.
struct DropoutKey {
  std::uint64_t seed;
  std::uint32_t step;
  std::uint8_t layer;
};

/// The largest `units` of a dropout layer: 24 bits of counter, four units to a draw.
inline constexpr std::size_t kMaxDropoutUnits = std::size_t{1} << 26;

/// Inverted dropout: y = x / (1 - rate) where the unit is kept, else 0; a unit is dropped with probability
/// `rate` in [0, 1). Applied to `dy` with the same arguments it is its own backward pass; x and y [rows,
/// units] may be the same array. The mask is a pure function of (seed, step, layer, row_ids[row], unit), so
/// it does not depend on how rows are divided among workers; `row_ids` [rows] name rows within the whole data
/// set. Source: N. Srivastava et al., "Dropout", JMLR 15, 2014, section 10 (scaled while training instead of
/// after).
template <typename T>
void dropout(std::span<const std::int64_t> row_ids, std::size_t units, double rate, DropoutKey key, const T* x, T* y);

/// How well the outputs for some rows fit their labels.
struct Outcome {
  double mean_loss = 0;      // over the rows given; 0 for no rows
  std::int64_t correct = 0;  // rows whose largest output is their label's (the first of equals)
};

/// Softmax cross-entropy over `logits` [rows, classes]: the mean over rows of log(sum_j exp z_j) - z_label,
/// with the largest logit subtracted first so that nothing overflows. Where not null, `dlogits` becomes the
/// gradient of that mean: (softmax(z) - onehot(label)) / rows. There are as many rows as labels. Source: C.
/// Bishop, "Pattern Recognition and Machine Learning", 2006, equations 4.104, 4.108 and 4.109. Throws
/// std::out_of_range for a label that is not below `classes`.
template <typename T>
Outcome softmax_cross_entropy(std::span<const std::uint8_t> labels, std::size_t classes, const T* logits, T* dlogits);

}  // namespace demos
