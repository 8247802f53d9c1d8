#pragma once

// The parts of a multilayer perceptron on a CUDA device that cuBLAS does not have: element-wise operations and sums,
// fused into few kernels. T is float or double. All pointers are to device memory. The functions put their work on the
// stream and do not wait. The order of sums depends on shapes only, so that a step gives the same bits each time. With
// zero rows, nothing is launched.

#include <cstddef>
#include <cstdint>

#include "demos/common/network.hpp"

struct CUstream_st;

namespace demos::cuda {

/// The device memory for kernels with sums: places for partial sums, and kCounters counters that are 0 between kernels.
inline constexpr std::size_t kCounters = 4096;
template <typename T>
struct Partials {
  T* values;
  double* losses;
  std::int64_t* correct;
  unsigned* counters;
};
/// The largest number of blocks that share the rows of a sum.
inline constexpr std::size_t kMostRowBlocks = 128;

/// Determines which units of a layer's output are dropped (see demos::dropout). `key` is in device memory. If it is
/// null, no units are dropped.
struct DropoutMask {
  const std::int64_t* row_ids = nullptr;
  const StepKey* key = nullptr;
  double rate = 0;
  std::uint8_t layer = 0;
};

/// y [rows, units] = dropout(x). x and y may be the same array.
template <typename T>
void dropout(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* x, T* y, CUstream_st* stream);

/// y [rows, units] = dropout(max(0, y + bias [units])), in one pass.
template <typename T>
void bias_relu(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* bias, T* y, CUstream_st* stream);

/// The gradient of bias_relu, computed from its output `y`. dy becomes the gradient before the bias, and dbias [units]
/// the sum of that over the rows. `rate` is the rate of the dropout, or 0 without dropout. No mask is needed, because y
/// is 0 for units that were dropped or were not positive.
template <typename T>
void bias_relu_backward(std::size_t rows, std::size_t units, double rate, const T* y, T* dy, T* dbias,
                        const Partials<T>& partials, CUstream_st* stream);

/// The destination of a loss. The loss is the mean over `of_rows` rows. A call may compute only some of these rows:
/// with Accumulate::kYes, it adds its part to the values that are already there.
enum class Accumulate : bool { kNo, kYes };
struct LossPlace {
  double* mean_loss;
  std::int64_t* correct;
  std::size_t of_rows;
  Accumulate accumulate = Accumulate::kNo;
};

/// Softmax cross-entropy of logits + bias [classes] (see demos::softmax_cross_entropy). If `dlogits` is not null,
/// dlogits and dbias become the gradient of the mean over `of_rows`. A label that is not below `classes` makes the loss
/// NaN.
template <typename T>
void softmax_cross_entropy(std::size_t rows, std::size_t classes, const std::uint8_t* labels, const T* logits,
                           const T* bias, T* dlogits, T* dbias, const LossPlace& loss, const Partials<T>& partials,
                           CUstream_st* stream);

/// The end of a training pass in one kernel. Its products are too small to be worth a kernel each:
///
///   hidden = dropout(max(0, hidden + hidden_bias))     [rows, units], in place
///   logits = hidden weights + bias                     weights [units, classes]
///   loss, dlogits, dbias                               as softmax_cross_entropy, of the mean over `rows`
///   dhidden, dhidden_bias                              the gradient before hidden_bias, and its sum over rows
///
/// The kernel does not compute the gradient of the weights, hidden^T dlogits. It supports only layers for which
/// can_fuse_head() returns true.
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
/// `partials` must have room for units + classes sums of each block.
template <typename T>
void train_head(const Head<T>& head, const LossPlace& loss, const Partials<T>& partials, CUstream_st* stream);

/// to [rows, width] = the rows of `from` that `ids` [rows] lists. E may also be uint8.
template <typename E>
void pick_rows(std::size_t rows, std::size_t width, const std::int64_t* ids, const E* from, E* to, CUstream_st* stream);

/// As demos::nesterov_update. rate and momentum are in device memory.
template <typename T>
void nesterov_update(std::size_t count, T* params, T* velocity, const T* gradient, const double* rate,
                     const double* momentum, CUstream_st* stream);

}  // namespace demos::cuda
