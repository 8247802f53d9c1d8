#include "demos/common/convolution.hpp"

#include <algorithm>

#include "demos/common/blas.hpp"

namespace demos {
namespace {

constexpr std::size_t kBlockPositions = 1024;

std::size_t images_per_block(const Conv2dShape& shape) {
  return std::max<std::size_t>(1, kBlockPositions / shape.positions());
}

/// The part of one kernel row that is inside the image: `count` elements, which start at `image` in the row of the
/// image and at `patch` in the row of the patch. They are contiguous in both, because channels come last.
struct Segment {
  std::size_t image;
  std::size_t patch;
  std::size_t count;
};

Segment segment_at(const Conv2dShape& shape, std::size_t x_out) {
  const std::size_t skipped = shape.pad() > x_out ? shape.pad() - x_out : 0;
  const std::size_t begin = x_out + skipped - shape.pad();
  const std::size_t end = std::min(x_out + shape.kernel - shape.pad(), shape.width);
  return {begin * shape.channels_in, skipped * shape.channels_in, (end - begin) * shape.channels_in};
}

/// Calls visit(image_offset, patch_offset, count) for each contiguous run of elements that an image and its unfolded
/// form share. The unfolded form has one row of patch_elements for each output position.
template <typename Visit>
void for_each_run(const Conv2dShape& shape, Visit visit) {
  const std::size_t kernel_row = shape.kernel * shape.channels_in;
  for (std::size_t position = 0; position < shape.positions(); ++position) {
    const std::size_t y_out = position / shape.width_out();
    const Segment segment = segment_at(shape, position % shape.width_out());
    for (std::size_t k = 0; k < shape.kernel; ++k) {
      const std::size_t y = y_out + k - shape.pad();  // above the image, this wraps to a number far beyond the height
      if (y >= shape.height) continue;
      visit(y * shape.width * shape.channels_in + segment.image,
            position * shape.patch_elements() + k * kernel_row + segment.patch, segment.count);
    }
  }
}

template <typename T>
void unfold(const Conv2dShape& shape, std::size_t rows, const T* images, T* columns) {
  const std::size_t unfolded = shape.positions() * shape.patch_elements();
  if (shape.padding == Padding::kSame) std::fill_n(columns, rows * unfolded, T{0});
  for (std::size_t row = 0; row < rows; ++row, images += shape.input_elements(), columns += unfolded) {
    for_each_run(shape, [&](std::size_t from, std::size_t to, std::size_t count) {
      std::copy_n(images + from, count, columns + to);
    });
  }
}

template <typename T>
void fold(const Conv2dShape& shape, std::size_t rows, const T* columns, T* images) {
  std::fill_n(images, rows * shape.input_elements(), T{0});
  const std::size_t unfolded = shape.positions() * shape.patch_elements();
  for (std::size_t row = 0; row < rows; ++row, images += shape.input_elements(), columns += unfolded) {
    for_each_run(shape, [&](std::size_t to, std::size_t from, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) images[to + i] += columns[from + i];
    });
  }
}

/// Calls visit(first, count) for each block of images that are unfolded together.
template <typename Visit>
void for_each_block(const Conv2dShape& shape, std::size_t rows, Visit visit) {
  const std::size_t block = images_per_block(shape);
  for (std::size_t first = 0; first < rows; first += block) visit(first, std::min(block, rows - first));
}

/// Calls visit(window, top_left, right, below) for each window of one image. `window` and `top_left` are the offsets of
/// the window's first channel in the output and in the input. `right` and `below` are the distances from there to the
/// right and the lower neighbour, or 0 if the edge cuts that neighbour off.
template <typename Visit>
void for_each_window(const Pool2dShape& shape, Visit visit) {
  const std::size_t line = shape.width * shape.channels;
  std::size_t window = 0;
  for (std::size_t y = 0; y < shape.height; y += 2) {
    for (std::size_t x = 0; x < shape.width; x += 2, window += shape.channels) {
      visit(window, y * line + x * shape.channels, x + 1 < shape.width ? shape.channels : 0,
            y + 1 < shape.height ? line : 0);
    }
  }
}

/// The offset of the window's largest element, counted from its top left element.
template <typename T>
std::size_t largest_of_window(const T* top_left, std::size_t right, std::size_t below) {
  std::size_t best = 0;
  for (const std::size_t offset : {right, below, right + below}) {
    if (top_left[offset] > top_left[best]) best = offset;
  }
  return best;
}

}  // namespace

std::size_t conv2d_scratch_elements(const Conv2dShape& shape) {
  return images_per_block(shape) * shape.positions() * shape.patch_elements();
}

template <typename T>
void conv2d_forward(std::size_t rows, const Conv2dShape& shape, Activation activation, const T* x, const T* weights,
                    const T* bias, T* scratch, T* y) {
  for_each_block(shape, rows, [&](std::size_t first, std::size_t count) {
    unfold(shape, count, x + first * shape.input_elements(), scratch);
    gemm(Transpose::kNo, Transpose::kNo, {count * shape.positions(), shape.channels_out, shape.patch_elements()},
         scratch, weights, T{0}, y + first * shape.output_elements());
  });
  add_bias(rows * shape.positions(), shape.channels_out, activation, bias, y);
}

template <typename T>
void conv2d_backward(std::size_t rows, const Conv2dShape& shape, const T* x, const T* weights, const T* dy, T* scratch,
                     T* dweights, T* dbias, T* dx) {
  std::fill_n(dweights, shape.patch_elements() * shape.channels_out, T{0});
  bias_backward(rows * shape.positions(), shape.channels_out, dy, dbias);
  for_each_block(shape, rows, [&](std::size_t first, std::size_t count) {
    const T* dy_block = dy + first * shape.output_elements();
    const std::size_t positions = count * shape.positions();
    unfold(shape, count, x + first * shape.input_elements(), scratch);
    gemm(Transpose::kYes, Transpose::kNo, {shape.patch_elements(), shape.channels_out, positions}, scratch, dy_block,
         T{1}, dweights);
    if (dx == nullptr) return;
    gemm(Transpose::kNo, Transpose::kYes, {positions, shape.patch_elements(), shape.channels_out}, dy_block, weights,
         T{0}, scratch);
    fold(shape, count, scratch, dx + first * shape.input_elements());
  });
}

template <typename T>
void max_pool_forward(std::size_t rows, const Pool2dShape& shape, const T* x, T* y) {
  for (std::size_t row = 0; row < rows; ++row, x += shape.input_elements(), y += shape.output_elements()) {
    for_each_window(shape, [&](std::size_t window, std::size_t top_left, std::size_t right, std::size_t below) {
      const T* from = x + top_left;
      for (std::size_t c = 0; c < shape.channels; ++c) {
        y[window + c] =
            std::max(std::max(from[c], from[c + right]), std::max(from[c + below], from[c + right + below]));
      }
    });
  }
}

template <typename T>
void max_pool_backward(std::size_t rows, const Pool2dShape& shape, const T* x, const T* dy, T* dx) {
  std::fill_n(dx, rows * shape.input_elements(), T{0});
  for (std::size_t row = 0; row < rows; ++row) {
    for_each_window(shape, [&](std::size_t window, std::size_t top_left, std::size_t right, std::size_t below) {
      for (std::size_t c = 0; c < shape.channels; ++c) {
        const std::size_t at = top_left + c;
        dx[at + largest_of_window(x + at, right, below)] = dy[window + c];
      }
    });
    x += shape.input_elements();
    dx += shape.input_elements();
    dy += shape.output_elements();
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type cannot be in parentheses
#define DEMOS_INSTANTIATE(T)                                                                                          \
  template void conv2d_forward<T>(std::size_t, const Conv2dShape&, Activation, const T*, const T*, const T*, T*, T*); \
  template void conv2d_backward<T>(std::size_t, const Conv2dShape&, const T*, const T*, const T*, T*, T*, T*, T*);    \
  template void max_pool_forward<T>(std::size_t, const Pool2dShape&, const T*, T*);                                   \
  template void max_pool_backward<T>(std::size_t, const Pool2dShape&, const T*, const T*, T*);
// NOLINTEND(bugprone-macro-parentheses)
DEMOS_INSTANTIATE(float)
DEMOS_INSTANTIATE(double)
#undef DEMOS_INSTANTIATE

}  // namespace demos
