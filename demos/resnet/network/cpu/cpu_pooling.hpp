#pragma once

// The two poolings of a residual network on a CPU device, for float32 with channels last. There may be zero rows.

#include <cstddef>
#include <cstdint>

namespace resnet {

/// The maximum over windows of 3x3 with stride 2. The image has a border of 1, which is never the maximum.
/// [rows, size, size, channels] becomes [rows, size_out(), size_out(), channels].
struct MaxPoolShape {
  std::size_t rows;
  std::size_t size;  // height and width
  std::size_t channels;
  std::size_t size_out() const { return (size - 1) / 2 + 1; }
  std::size_t elements_in() const { return size * size * channels; }               // per row
  std::size_t elements_out() const { return size_out() * size_out() * channels; }  // per row
};

/// If `taps` is not null, it gets for each output the place of the maximum in the window, counted by rows from 0 to 8.
/// If several values are equal, it is the first one. A NaN counts as the maximum.
void max_pool(const MaxPoolShape& shape, const float* x, float* y, std::int32_t* taps);

/// Overwrites dx. Each dy is added to the place of the maximum that `taps` says.
void max_pool_backward(const MaxPoolShape& shape, const std::int32_t* taps, const float* dy, float* dx);

/// The shape of a mean over pixels: [rows, pixels, channels] becomes [rows, channels].
struct MeanShape {
  std::size_t rows;
  std::size_t pixels;
  std::size_t channels;
};

void mean_over_pixels(const MeanShape& shape, const float* x, float* y);

/// Overwrites dx with dy / pixels for every pixel.
void mean_over_pixels_backward(const MeanShape& shape, const float* dy, float* dx);

}  // namespace resnet
