#pragma once

// Convolution and pooling layers as pure functions on row-major arrays. Channels come last: images are
// [rows, height, width, channels]. T is float or double. See layers.hpp for the conventions.

#include <cstddef>

#include "demos/common/layers.hpp"

namespace demos {

/// kValid computes outputs only where the kernel fits inside the image. kSame pads the image with zeros, so that the
/// output is as large as the input. For an even kernel, the extra zero is at the bottom and right.
enum class Padding { kValid, kSame };

/// A square kernel that moves by one pixel at a time. With kValid, neither side of the image may be smaller than
/// `kernel`.
struct Conv2dShape {
  std::size_t height;
  std::size_t width;
  std::size_t channels_in;
  std::size_t channels_out;
  std::size_t kernel;
  Padding padding;

  std::size_t pad() const { return padding == Padding::kSame ? (kernel - 1) / 2 : 0; }
  std::size_t height_out() const { return padding == Padding::kSame ? height : height - kernel + 1; }
  std::size_t width_out() const { return padding == Padding::kSame ? width : width - kernel + 1; }
  std::size_t positions() const { return height_out() * width_out(); }
  std::size_t patch_elements() const { return kernel * kernel * channels_in; }
  std::size_t input_elements() const { return height * width * channels_in; }
  std::size_t output_elements() const { return positions() * channels_out; }
};

/// The scratch space that a convolution needs, in elements. It does not depend on the number of rows: a convolution
/// unfolds only a few images at a time, so that the unfolded block stays in the cache.
std::size_t conv2d_scratch_elements(const Conv2dShape& shape);

/// y [rows, height_out, width_out, channels_out] = activation(x * weights + bias), where * is the cross-correlation of
/// x [rows, height, width, channels_in] with weights [kernel, kernel, channels_in, channels_out]. The function unfolds
/// each patch of the image to a row of a matrix, and multiplies the matrix by the weights. Source: K. Chellapilla,
/// S. Puri, P. Simard, "High Performance Convolutional Neural Networks for Document Processing", IWFHR 2006, section 3.
template <typename T>
void conv2d_forward(std::size_t rows, const Conv2dShape& shape, Activation activation, const T* x, const T* weights,
                    const T* bias, T* scratch, T* y);

/// The gradients of conv2d_forward. `dy` is the gradient of the sum before the activation. The function computes the
/// gradients of the matrix product (see dense_backward). It then folds dx back: the gradient of a pixel is the sum over
/// all patches that contain it. All results are overwritten. `dx` may be null. Source: as conv2d_forward, section 3.
template <typename T>
void conv2d_backward(std::size_t rows, const Conv2dShape& shape, const T* x, const T* weights, const T* dy, T* scratch,
                     T* dweights, T* dbias, T* dx);

/// Windows of 2x2 pixels side by side. If a side of the image is odd, the edge cuts off the last windows.
struct Pool2dShape {
  std::size_t height;
  std::size_t width;
  std::size_t channels;

  std::size_t height_out() const { return (height + 1) / 2; }
  std::size_t width_out() const { return (width + 1) / 2; }
  std::size_t input_elements() const { return height * width * channels; }
  std::size_t output_elements() const { return height_out() * width_out() * channels; }
};

/// y [rows, height_out, width_out, channels] = the largest of each window.
/// Source: Goodfellow et al., "Deep Learning", 2016, section 9.3.
template <typename T>
void max_pool_forward(std::size_t rows, const Pool2dShape& shape, const T* x, T* y);

/// dx = dy at the largest pixel of each window (the first one if several are equal), and 0 at the others.
template <typename T>
void max_pool_backward(std::size_t rows, const Pool2dShape& shape, const T* x, const T* dy, T* dx);

}  // namespace demos
