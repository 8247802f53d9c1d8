#pragma once

// Batch normalisation of float32 [rows, pixels, channels] on a CPU device, over the rows of one rank or of all ranks.
// The functions keep no state except their scratch memory. There may be zero rows. Source: S. Ioffe, C. Szegedy, "Batch
// Normalization", arXiv 1502.03167, algorithm 1 and section 3.

#include <cstddef>

#include "demos/resnet/network/cpu/cpu_buffer.hpp"
#include "demos/resnet/network/network.hpp"

namespace resnet {

/// The rows of a step. `own` are those of this rank. Without a sum over ranks, `all` equals `own`.
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

/// The memory for sums by channel. It is kept from call to call.
struct NormScratch {
  CpuBuffer<double> totals;   // [2 * channels]
  CpuBuffer<double> partial;  // [parts, 2 * channels]
  CpuBuffer<float> block;     // [parts, 2 * channels]
  CpuBuffer<float> exchange;  // [2 * channels]: values that are summed over the ranks
  CpuBuffer<float> factors;   // [3 * channels]: factors and offsets of a pass over the elements
  void reserve(std::size_t channels);
};

/// The parameters of a normalisation.
struct NormParams {
  const float* scale;  // [channels]
  const float* shift;  // [channels]
};

/// Arrays by channel. The inverse deviation is 1 / sqrt(variance + epsilon).
struct NormMoments {
  float* mean;
  float* inverse_deviation;
};

enum class AfterNorm { kNothing, kRelu };

/// Computes the mean and the inverse deviation of x by channel, over the pixels of all rows of all ranks. It computes
/// the mean first, then the biased variance about it. It moves the running statistics [mean, variance: 2 * channels]
/// towards this mean and the unbiased variance (0 for a single place), unless no rank has rows. It makes two sums over
/// the ranks, so all ranks must call it.
void measure(const NormShape& shape, const StepRows& rows, const float* x, NormScratch& scratch,
             const NormMoments& moments, float* running);

/// Computes the same arrays from the running statistics.
void moments_of_running(std::size_t channels, const float* running, const NormMoments& moments);

/// y = after((x - mean) * inverse_deviation * scale + shift + addend); `addend` may be null, y may be x.
void normalize(const NormShape& shape, const NormMoments& moments, const NormParams& params, AfterNorm after,
               const float* x, const float* addend, NormScratch& scratch, float* y);

/// The arrays of a backward step through normalize() and the statistics of measure().
struct NormBackward {
  const float* x;
  const float* y;       // the output if it ended with a ReLU: dy counts only where y > 0; else null
  const float* scale;   // [channels]
  NormMoments moments;  // of measure()
  float* dy;            // set to 0 where the ReLU returned 0
  float* dx;            // may be dy
  float* dscale;        // [channels]
  float* dshift;        // [channels]
};

/// The gradients of the mean loss over this rank's own rows. They are weighted so that the average over the ranks,
/// weighted by rows, is the gradient of the mean over all rows. x' is the normalised x:
///   dx = scale / deviation * (dy - (S(dy) + x' S(dy x')) / (own rows * places of all ranks)),
/// where S sums own rows * value over the places of all ranks. dscale = sum dy x' and dshift = sum dy, both over the
/// own places. It makes one sum over the ranks, so all ranks must call it. Source: arXiv 1502.03167, section 3, the
/// gradients of algorithm 1.
void normalize_backward(const NormShape& shape, const StepRows& rows, const NormBackward& arrays, NormScratch& scratch);

}  // namespace resnet
