#pragma once

// Code that tests of a residual network's kernels share: arrays of activations, and the arrays of a normalisation, in
// device memory.

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet::testing {

using demos::testing::OnDevice;

inline constexpr CUstream_st* kStream = nullptr;

inline std::vector<float> uniform(std::size_t count, std::uint64_t from) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(uniform_at(from + i));
  return values;
}

/// Activations of a network in device memory. Tests write and read them as floats.
class Elements {
 public:
  Elements(CudaMath math, const std::vector<float>& values) {
    if (math == CudaMath::kBfloat16) narrow_.emplace(std::vector<__nv_bfloat16>(values.begin(), values.end()));
    else wide_.emplace(values);
  }
  void* data() const { return narrow_ ? static_cast<void*>(narrow_->data()) : wide_->data(); }
  std::vector<float> read() const {
    if (!narrow_) return wide_->read();
    const std::vector<__nv_bfloat16> values = narrow_->read();
    return {values.begin(), values.end()};
  }

 private:
  std::optional<OnDevice<float>> wide_;
  std::optional<OnDevice<__nv_bfloat16>> narrow_;
};

/// The largest relative error of a value due to the type in which it was stored.
inline double rounding_of(CudaMath math) { return math == CudaMath::kBfloat16 ? 1.0 / 256 : 0; }

/// Values that elements of this type represent exactly.
inline std::vector<float> elements_of(CudaMath math, std::size_t count, std::uint64_t from) {
  return Elements(math, uniform(count, from)).read();
}

/// Memory for the sums of kernels.
struct Sums {
  explicit Sums(std::size_t channels)
      : partials(std::vector<float>(cuda::kMostPartials * cuda::kMostSums * channels, 99)),
        arrived(std::vector<unsigned>(cuda::kMostColumnGroups)),
        sums(std::vector<float>(2 * (2 * channels + 1), 99)) {}
  cuda::SumPlace place() const { return {partials.data(), arrived.data(), sums.data()}; }
  OnDevice<float> partials;
  OnDevice<unsigned> arrived;
  OnDevice<float> sums;
};

/// The arrays of a normalisation.
struct Norm {
  explicit Norm(std::size_t channels, std::uint64_t from)
      : scale(uniform(channels, from)),
        shift(uniform(channels, from + 1000)),
        running_mean(uniform(channels, from + 2000)),
        running_variance(std::vector<float>(channels, 1)),
        own(std::vector<float>(7 * channels, 99)),
        gradients(std::vector<float>(2 * channels, 99)),
        channels(channels) {}
  cuda::NormPlace place() const {
    return {.scale = scale.data(),
            .shift = shift.data(),
            .running_mean = running_mean.data(),
            .running_variance = running_variance.data(),
            .factor = own.data(),
            .offset = own.data() + channels,
            .mean = own.data() + 2 * channels,
            .inverse_deviation = own.data() + 3 * channels,
            .backward = own.data() + 4 * channels,
            .scale_gradient = gradients.data(),
            .shift_gradient = gradients.data() + channels};
  }
  OnDevice<float> scale, shift, running_mean, running_variance, own, gradients;
  std::size_t channels;
};

/// Mean and inverse deviation of a channel of a normalisation.
struct Moments {
  double mean = 0;
  double inverse = 0;
  Moments(const std::vector<float>& x, std::size_t channels, std::size_t c) {
    const auto count = static_cast<double>(x.size() / channels);
    double squares = 0;
    for (std::size_t i = c; i < x.size(); i += channels) mean += x[i] / count;
    for (std::size_t i = c; i < x.size(); i += channels) squares += (x[i] - mean) * (x[i] - mean);
    inverse = 1 / std::sqrt(squares / count + 1e-5);
  }
};

}  // namespace resnet::testing
