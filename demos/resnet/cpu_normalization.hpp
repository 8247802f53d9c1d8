#pragma once

// Batch normalisation of float32 [rows, pixels, channels] on a CPU device, over the rows of one rank or of all. Functions
// keep no state but their scratch; rows may be zero. Source: S. Ioffe, C. Szegedy, "Batch Normalization", arXiv 1502.03167,
// algorithm 1 and section 3.

#include <cstddef>

#include "demos/resnet/cpu_buffer.hpp"
#include "demos/resnet/network.hpp"

namespace resnet {

/// The rows of a step. Without a sum over ranks, all rows are the own ones.
struct StepRows {
  const SumOverRanks& sum;
  std::size_t own;
  std::size_t all;
};

struct NormShape {
  std::size_t rows;
  std::size_t pixels;
  std::size_t channels;
  std::size_t places() const { return rows * pixels; }
  std::size_t elements() const { return places() * channels; }
};

/// Memory that sums by channel need, kept from call to call.
struct NormScratch {
  CpuBuffer<double> totals;   // [2 * channels]
  CpuBuffer<double> partial;  // [parts, 2 * channels]
  CpuBuffer<float> block;     // [parts, 2 * channels]
  CpuBuffer<float> exchange;  // [2 * channels]: what goes over the ranks
  CpuBuffer<float> factors;   // [3 * channels]: what a pass over the elements multiplies by and adds
  void reserve(std::size_t channels);
};

/// How the elements of a channel become its outputs, besides the pass over them.
struct NormParams {
  const float* scale;  // [channels]
  const float* shift;  // [channels]
};

/// Arrays by channel: 1 / sqrt(variance + epsilon) is the deviation's inverse.
struct NormMoments {
  float* mean;
  float* inverse_deviation;
};

enum class AfterNorm { kNothing, kRelu };

/// Mean and inverse deviation of x over all rows of all ranks and all pixels, by channel: the mean first, then the biased
/// variance about it. The running statistics [mean, variance: 2 * channels] move towards this mean and the unbiased
/// variance (of a single place: 0), unless there are no rows at all. Two sums over the ranks. Called by all ranks.
void measure(const NormShape& shape, const StepRows& rows, const float* x, NormScratch& scratch,
             const NormMoments& moments, float* running);

/// The same arrays from running statistics.
void moments_of_running(std::size_t channels, const float* running, const NormMoments& moments);

/// y = after((x - mean) * inverse_deviation * scale + shift + addend); `addend` may be null, y may be x.
void normalize(const NormShape& shape, const NormMoments& moments, const NormParams& params, AfterNorm after,
               const float* x, const float* addend, NormScratch& scratch, float* y);

/// What a step backward through normalize() and the statistics of measure() reads and writes.
struct NormBackward {
  const float* x;
  const float* y;       // where it ended in a ReLU, else null: dy counts where y > 0
  const float* scale;   // [channels]
  NormMoments moments;  // of measure()
  float* dy;            // set to 0 where the ReLU was
  float* dx;            // may be dy
  float* dscale;        // [channels]
  float* dshift;        // [channels]
};

/// The gradients of the mean loss over the own rows, weighted so that those of the ranks, averaged by rows, are those of
/// the mean over all rows: with d = dy / own rows on each rank, and x' the normalised x,
///   dx = scale / deviation * (dy - (S(dy) + x' S(dy x')) / (own rows * places of all ranks)),
/// where S sums own rows * value over all ranks' places; dscale = sum dy x' and dshift = sum dy over the own. One sum over
/// the ranks. Called by all ranks. Source: arXiv 1502.03167, section 3, the gradients of algorithm 1.
void normalize_backward(const NormShape& shape, const StepRows& rows, const NormBackward& arrays, NormScratch& scratch);

}  // namespace resnet
