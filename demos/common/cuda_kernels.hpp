#pragma once

// The layers of a multilayer perceptron on a CUDA device, as far as cuBLAS has none: what is element-wise or a sum is
// fused into few kernels. T is float or double. All pointers are device memory, all work is put on the stream, nothing
// waits. Sums are made in an order that depends on shapes only, so that a step gives the same bits each time. With zero
// rows nothing is launched.

#include <cstddef>
#include <cstdint>

#include "demos/common/network.hpp"

struct CUstream_st;

namespace demos::cuda {

/// What the kernels with sums need: memory for partial sums (see partial_elements), and kCounters counters that are 0.
inline constexpr std::size_t kCounters = 4096;
template <typename T>
struct Partials {
  T* values;
  double* losses;
  std::int64_t* correct;
  unsigned* counters;
};
/// Blocks that share the rows of a sum, at most.
inline constexpr std::size_t kMostRowBlocks = 128;

/// Which units of a layer's output are dropped, see demos::dropout. `key` is in device memory; null: none are.
struct DropoutMask {
  const std::int64_t* row_ids = nullptr;
  const StepKey* key = nullptr;
  double rate = 0;
  std::uint8_t layer = 0;
};

/// y [rows, units] = dropout(x); x and y may be the same.
template <typename T>
void dropout(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* x, T* y, CUstream_st* stream);

/// y [rows, units] = dropout(max(0, y + bias [units])), in one pass.
template <typename T>
void bias_relu(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* bias, T* y, CUstream_st* stream);

/// The gradient of bias_relu, given its output `y`: dy becomes that before the bias, dbias [units] its sum over rows.
/// `rate` is that of the dropout, 0 without. What was dropped or not positive has y = 0, so no mask is needed.
template <typename T>
void bias_relu_backward(std::size_t rows, std::size_t units, double rate, const T* y, T* dy, T* dbias,
                        const Partials<T>& partials, CUstream_st* stream);

/// Where a loss goes: the mean over `of_rows` rows, of which these may be a part that is added to what is there.
enum class Accumulate : bool { kNo, kYes };
struct LossPlace {
  double* mean_loss;
  std::int64_t* correct;
  std::size_t of_rows;
  Accumulate accumulate = Accumulate::kNo;
};

/// Softmax cross-entropy of logits + bias [classes]; see demos::softmax_cross_entropy. Where `dlogits` is not null it
/// and dbias become the gradient of the mean over `of_rows`. A label that is not below `classes` makes the loss NaN.
template <typename T>
void softmax_cross_entropy(std::size_t rows, std::size_t classes, const std::uint8_t* labels, const T* logits,
                           const T* bias, T* dlogits, T* dbias, const LossPlace& loss, const Partials<T>& partials,
                           CUstream_st* stream);

/// The end of a training pass in one kernel, since its products are too thin to be worth one each:
///
///   hidden = dropout(max(0, hidden + hidden_bias))     [rows, units], in place
///   logits = hidden weights + bias                     weights [units, classes]
///   loss, dlogits, dbias                               as softmax_cross_entropy, of the mean over `rows`
///   dhidden, dhidden_bias                              the gradient before hidden_bias, and its sum over rows
///
/// What is left is the gradient of the weights, hidden^T dlogits. For layers that can_fuse_head() says.
template <typename T>
struct Head {
  std::size_t rows;
  std::size_t units;
  const std::uint8_t* labels;
  DropoutMask mask;
  const T* hidden_bias;
  const T* weights;
  const T* bias;
  T* hidden;
  T* dlogits;
  T* dbias;
  T* dhidden;
  T* dhidden_bias;
};
template <typename T>
bool can_fuse_head(std::size_t units, std::size_t classes);
/// `partials` has room for units + classes sums of each block.
template <typename T>
void train_head(const Head<T>& head, const LossPlace& loss, const Partials<T>& partials, CUstream_st* stream);

/// to [rows, width] = the rows of `from` that `ids` [rows] name. Also for uint8.
template <typename E>
void pick_rows(std::size_t rows, std::size_t width, const std::int64_t* ids, const E* from, E* to, CUstream_st* stream);

/// demos::nesterov_update; rate and momentum are in device memory.
template <typename T>
void nesterov_update(std::size_t count, T* params, T* velocity, const T* gradient, const double* rate,
                     const double* momentum, CUstream_st* stream);

}  // namespace demos::cuda
