#include "demos/resnet/network/cpu/cpu_pooling.hpp"

#include <algorithm>
#include <limits>

#include "demos/resnet/network/cpu/cpu_parallel.hpp"

namespace resnet {
namespace {

constexpr std::int32_t kTaps = 9;

/// Calls visit(tap, place) for each place of the window of output (row, column) that is inside the image, row by row.
template <typename Visit>
void for_each_tap(std::size_t size, std::size_t row, std::size_t column, const Visit& visit) {
  for (std::int32_t tap = 0; tap < kTaps; ++tap) {
    const std::size_t y = 2 * row + static_cast<std::size_t>(tap / 3) - 1;  // above the image, wraps beyond the size
    const std::size_t x = 2 * column + static_cast<std::size_t>(tap % 3) - 1;
    if (y < size && x < size) visit(tap, y * size + x);
  }
}

/// Calls visit(row, column, output) for each output place of an image.
template <typename Visit>
void for_each_output(std::size_t size_out, const Visit& visit) {
  for (std::size_t row = 0; row < size_out; ++row) {
    for (std::size_t column = 0; column < size_out; ++column) visit(row, column, row * size_out + column);
  }
}

void take_larger(std::size_t channels, const float* x, float* best) {
  for (std::size_t c = 0; c < channels; ++c) best[c] = x[c] > best[c] || x[c] != x[c] ? x[c] : best[c];
}

void take_larger(std::size_t channels, const float* x, std::int32_t tap, float* best, std::int32_t* taps) {
  for (std::size_t c = 0; c < channels; ++c) {
    const bool is_taken = x[c] > best[c] || x[c] != x[c];
    best[c] = is_taken ? x[c] : best[c];
    taps[c] = is_taken ? tap : taps[c];
  }
}

void pool_image(const MaxPoolShape& shape, const float* x, float* y, std::int32_t* taps) {
  for_each_output(shape.size_out(), [&](std::size_t row, std::size_t column, std::size_t output) {
    float* best = y + output * shape.channels;
    std::fill_n(best, shape.channels, -std::numeric_limits<float>::infinity());
    std::int32_t* const taken = taps == nullptr ? nullptr : taps + output * shape.channels;
    // Start with the first place of the window that is inside the image. It stays if no value is larger than minus
    // infinity.
    if (taken != nullptr) std::fill_n(taken, shape.channels, (row == 0 ? 3 : 0) + (column == 0 ? 1 : 0));
    for_each_tap(shape.size, row, column, [&](std::int32_t tap, std::size_t place) {
      const float* from = x + place * shape.channels;
      if (taken == nullptr) return take_larger(shape.channels, from, best);
      take_larger(shape.channels, from, tap, best, taken);
    });
  });
}

void unpool_image(const MaxPoolShape& shape, const std::int32_t* taps, const float* dy, float* dx) {
  const std::size_t channels = shape.channels;
  std::fill_n(dx, shape.elements_in(), 0.0F);
  for_each_output(shape.size_out(), [&](std::size_t row, std::size_t column, std::size_t output) {
    const float* from = dy + output * channels;
    const std::int32_t* taken = taps + output * channels;
    for_each_tap(shape.size, row, column, [&](std::int32_t tap, std::size_t place) {
      float* to = dx + place * channels;
      for (std::size_t c = 0; c < channels; ++c) to[c] += taken[c] == tap ? from[c] : 0.0F;
    });
  });
}

}  // namespace

void max_pool(const MaxPoolShape& shape, const float* x, float* y, std::int32_t* taps) {
  for_each_part(shape.rows, [&](std::size_t row) {
    const std::size_t output = row * shape.elements_out();
    pool_image(shape, x + row * shape.elements_in(), y + output, taps == nullptr ? nullptr : taps + output);
  });
}

void max_pool_backward(const MaxPoolShape& shape, const std::int32_t* taps, const float* dy, float* dx) {
  for_each_part(shape.rows, [&](std::size_t row) {
    const std::size_t output = row * shape.elements_out();
    unpool_image(shape, taps + output, dy + output, dx + row * shape.elements_in());
  });
}

void mean_over_pixels(const MeanShape& shape, const float* x, float* y) {
  const float weight = 1 / static_cast<float>(shape.pixels);
  for_each_part(shape.rows, [&](std::size_t row) {
    const float* from = x + row * shape.pixels * shape.channels;
    float* to = y + row * shape.channels;
    std::fill_n(to, shape.channels, 0.0F);
    for (std::size_t pixel = 0; pixel < shape.pixels; ++pixel, from += shape.channels) {
      for (std::size_t c = 0; c < shape.channels; ++c) to[c] += from[c];
    }
    for (std::size_t c = 0; c < shape.channels; ++c) to[c] *= weight;
  });
}

void mean_over_pixels_backward(const MeanShape& shape, const float* dy, float* dx) {
  const float weight = 1 / static_cast<float>(shape.pixels);
  for_each_part(shape.rows, [&](std::size_t row) {
    const float* from = dy + row * shape.channels;
    float* to = dx + row * shape.pixels * shape.channels;
    for (std::size_t pixel = 0; pixel < shape.pixels; ++pixel, to += shape.channels) {
      for (std::size_t c = 0; c < shape.channels; ++c) to[c] = weight * from[c];
    }
  });
}

}  // namespace resnet
