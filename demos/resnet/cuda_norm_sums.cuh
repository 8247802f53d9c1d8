#pragma once

// What the sums over a batch, and over a normalisation's gradient, become: in the last block of a kernel that adds them up.

#include "demos/resnet/cuda_norm_kernels.hpp"
#include "demos/resnet/network.hpp"

namespace resnet::cuda {

/// What follows from mean and biased variance.
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

/// From the sums of x - running mean and of its square, of a channel: see statistics.
__device__ inline void finish_statistics(const NormPlace& norm, unsigned c, NormShape shape, double sum, double squares,
                                         Ranks ranks) {
  const double count = static_cast<double>(shape.positions);
  const double mean = count > 0 ? sum / count : 0;
  const double off = squares - sum * mean;
  const double deviations = off < 0 ? 0 : off;  // what is no number stays none
  if (ranks == Ranks::kOwn) {
    use_moments(norm, c, norm.running_mean[c] + mean, count > 0 ? deviations / count : 0, count);
  } else {
    norm.mean[c] = static_cast<float>(norm.running_mean[c] + mean);
    norm.inverse_deviation[c] = static_cast<float>(deviations);
  }
}

/// dx = gamma / deviation (dz - mean(dz) - x^ mean(dz x^)), with x^ = (x - mean) / deviation, as a line in dz and x.
__device__ inline void make_line(const NormPlace& norm, std::size_t c, std::size_t channels, float mean_dz,
                                 float mean_dz_x) {
  const float slope = norm.scale[c] * norm.inverse_deviation[c];
  const float of_x = -slope * norm.inverse_deviation[c] * mean_dz_x;
  norm.backward[c] = slope;
  norm.backward[channels + c] = of_x;
  norm.backward[2 * channels + c] = -slope * mean_dz - of_x * norm.mean[c];
}

/// From the sums of dz and of dz (x - mean), of a channel: see backward_sums_relu.
__device__ inline void finish_backward(const NormPlace& norm, float* sums, unsigned c, NormShape shape, double dz,
                                       double dz_x, Ranks ranks) {
  const auto sum = static_cast<float>(dz);
  const auto sum_x = static_cast<float>(dz_x * static_cast<double>(norm.inverse_deviation[c]));
  const auto count = static_cast<float>(shape.positions);
  norm.shift_gradient[c] = sum;
  norm.scale_gradient[c] = sum_x;
  if (ranks == Ranks::kOwn) return make_line(norm, c, shape.channels, sum / count, sum_x / count);
  // A rank's loss is the mean over its own rows: by the number of those, the sums are of one loss.
  sums[c] = sum * count;
  sums[shape.channels + c] = sum_x * count;
  if (c == 0) sums[2 * shape.channels] = count;
}

}  // namespace resnet::cuda
