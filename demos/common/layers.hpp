#pragma once

// The layers of a multilayer perceptron as pure functions on row-major arrays. Each has a forward function, and a
// backward function that starts from the gradient of the loss with respect to the output. T is float or double. The
// functions allocate nothing and keep no state. Zero rows are legal everywhere. Convolutions are in convolution.hpp.

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

/// The gradients of dense_forward. `dy` is the gradient of the sum before the activation (see relu_backward). dweights
/// = x^T dy, dbias = sum of dy over rows, dx = dy weights^T. All three are overwritten. `dx` may be null if it is not
/// needed. Source: Goodfellow et al., 2016, section 6.5.6.
template <typename T>
void dense_backward(std::size_t rows, DenseShape shape, const T* x, const T* weights, const T* dy, T* dweights,
                    T* dbias, T* dx);

/// y [rows, units] = activation(y + bias [units]) in one pass. Dense layers and convolutions both end with it.
template <typename T>
void add_bias(std::size_t rows, std::size_t units, Activation activation, const T* bias, T* y);

/// dbias [units] = sum of dy [rows, units] over rows.
template <typename T>
void bias_backward(std::size_t rows, std::size_t units, const T* dy, T* dbias);

/// dy = dy where y > 0, else 0. y = max(0, x) is the output of a rectifier.
/// Source: X. Glorot, A. Bordes, Y. Bengio, "Deep Sparse Rectifier Neural Networks", AISTATS 2011, section 3.
template <typename T>
void relu_backward(std::size_t elements, const T* y, T* dy);

/// Determines a dropout mask, together with the row and the unit.
struct DropoutKey {
  std::uint64_t seed;
  std::uint32_t step;
  std::uint8_t layer;
};

/// The largest `units` of a dropout layer. The counter has 24 bits for the draw, and each draw serves four units.
inline constexpr std::size_t kMaxDropoutUnits = std::size_t{1} << 26;

/// Inverted dropout: y = x / (1 - rate) where the unit is kept, else 0. A unit is dropped with probability `rate`,
/// which is in [0, 1). The backward pass is the same function, applied to `dy` with the same arguments. x and y [rows,
/// units] may be the same array. `row_ids` [rows] are the numbers of the rows within the whole data set. The mask is a
/// pure function of (seed, step, layer, row_ids[row], unit), so it does not depend on how rows are divided among
/// workers. Source: N. Srivastava et al., "Dropout", JMLR 15, 2014, section 10 (here scaled during training instead of
/// after it).
template <typename T>
void dropout(std::span<const std::int64_t> row_ids, std::size_t units, double rate, DropoutKey key, const T* x, T* y);

/// How well the outputs for some rows fit their labels.
struct Outcome {
  double mean_loss = 0;      // over the given rows; 0 without rows
  std::int64_t correct = 0;  // rows whose largest output (the first if several are equal) is that of their label
};

/// Softmax cross-entropy over `logits` [rows, classes]: the mean over rows of log(sum_j exp z_j) - z_label. The
/// function first subtracts the largest logit, so that nothing overflows. If `dlogits` is not null, it becomes the
/// gradient of that mean: (softmax(z) - onehot(label)) / rows. There are as many rows as labels. Source: C. Bishop,
/// "Pattern Recognition and Machine Learning", 2006, equations 4.104, 4.108 and 4.109. Throws std::out_of_range for a
/// label that is not below `classes`.
template <typename T>
Outcome softmax_cross_entropy(std::span<const std::uint8_t> labels, std::size_t classes, const T* logits, T* dlogits);

}  // namespace demos
