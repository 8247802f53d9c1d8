#pragma once

// Turns the sums over a batch into its statistics, and the sums of a normalisation's gradient into the coefficients of
// dx. The last block of a kernel that adds up the sums calls these functions.

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "demos/resnet/network/network.hpp"

namespace resnet::cuda {

/// Sets all values of `norm` that follow from the mean and the biased variance.
__device__ inline void use_moments(const NormPlace& norm, std::size_t c, double mean, double variance,
                                   double positions) {
  const double inverse = 1.0 / sqrt(variance + kNormEpsilon);
  norm.mean[c] = static_cast<float>(mean);
  norm.inverse_deviation[c] = static_cast<float>(inverse);
  norm.factor[c] = static_cast<float>(norm.scale[c] * inverse);
  norm.offset[c] = static_cast<float>(norm.shift[c] - mean * norm.scale[c] * inverse);
  const double unbiased = positions > 1 ? variance * positions / (positions - 1) : variance;
  norm.running_mean[c] = static_cast<float>((1 - kNormMomentum) * norm.running_mean[c] + kNormMomentum * mean);
  norm.running_variance[c] =
      static_cast<float>((1 - kNormMomentum) * norm.running_variance[c] + kNormMomentum * unbiased);
}

/// Completes the statistics of a channel (see `statistics`). `sum` and `squares` are the sums of x - running mean and
/// of its square.
__device__ inline void finish_statistics(const NormPlace& norm, unsigned c, NormShape shape, double sum, double squares,
                                         Ranks ranks) {
  const double count = static_cast<double>(shape.positions);
  const double mean = count > 0 ? sum / count : 0;
  const double off = squares - sum * mean;
  const double deviations = off < 0 ? 0 : off;  // a NaN stays NaN
  if (ranks == Ranks::kOwn) {
    use_moments(norm, c, norm.running_mean[c] + mean, count > 0 ? deviations / count : 0, count);
  } else {
    norm.mean[c] = static_cast<float>(norm.running_mean[c] + mean);
    norm.inverse_deviation[c] = static_cast<float>(deviations);
  }
}

/// dx = gamma / deviation (dz - mean(dz) - x^ mean(dz x^)), with x^ = (x - mean) / deviation. This is linear in dz and
/// x. Computes the coefficients.
__device__ inline void make_line(const NormPlace& norm, std::size_t c, std::size_t channels, float mean_dz,
                                 float mean_dz_x) {
  const float slope = norm.scale[c] * norm.inverse_deviation[c];
  const float of_x = -slope * norm.inverse_deviation[c] * mean_dz_x;
  norm.backward[c] = slope;
  norm.backward[channels + c] = of_x;
  norm.backward[2 * channels + c] = -slope * mean_dz - of_x * norm.mean[c];
}

/// Completes the first backward pass for a channel (see backward_sums_relu). `dz` and `dz_x` are the sums of dz and of
/// dz (x - mean).
__device__ inline void finish_backward(const NormPlace& norm, float* sums, unsigned c, NormShape shape, double dz,
                                       double dz_x, Ranks ranks) {
  const auto sum = static_cast<float>(dz);
  const auto sum_x = static_cast<float>(dz_x * static_cast<double>(norm.inverse_deviation[c]));
  const auto count = static_cast<float>(shape.positions);
  norm.shift_gradient[c] = sum;
  norm.scale_gradient[c] = sum_x;
  if (ranks == Ranks::kOwn) return make_line(norm, c, shape.channels, sum / count, sum_x / count);
  // The loss of a rank is the mean over its own rows. Times its number of positions, the sums of all ranks are of one
  // loss.
  sums[c] = sum * count;
  sums[shape.channels + c] = sum_x * count;
  if (c == 0) sums[2 * shape.channels] = count;
}

}  // namespace resnet::cuda
