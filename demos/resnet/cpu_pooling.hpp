#pragma once

// The two poolings of a residual network on a CPU device, float32 in channels-last order. Rows may be zero.

#include <cstddef>
#include <cstdint>

namespace resnet {

/// The maximum over windows of 3x3 by steps of 2, with a border of 1 that is never the maximum:
/// [rows, size, size, channels] to [rows, size_out(), size_out(), channels].
struct MaxPoolShape {
  std::size_t rows;
  std::size_t size;  // height and width
  std::size_t channels;
  std::size_t size_out() const { return (size - 1) / 2 + 1; }
  std::size_t elements_in() const { return size * size * channels; }               // per row
  std::size_t elements_out() const { return size_out() * size_out() * channels; }  // per row
};

/// Where `taps` is not null it gets, for each output, which of its window's nine places was taken, counted by rows: the
/// first of equals. What is no number is taken.
void max_pool(const MaxPoolShape& shape, const float* x, float* y, std::int32_t* taps);

/// dx, overwritten: each dy goes to the place that was taken.
void max_pool_backward(const MaxPoolShape& shape, const std::int32_t* taps, const float* dy, float* dx);

/// What a mean over pixels is taken of: [rows, pixels, channels] to [rows, channels].
struct MeanShape {
  std::size_t rows;
  std::size_t pixels;
  std::size_t channels;
};

void mean_over_pixels(const MeanShape& shape, const float* x, float* y);

/// dx, overwritten: dy / pixels for every pixel.
void mean_over_pixels_backward(const MeanShape& shape, const float* dy, float* dx);

}  // namespace resnet
