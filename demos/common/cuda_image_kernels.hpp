#pragma once

// The kernels that a convolutional network needs on a CUDA device besides cuDNN and cuda_kernels.hpp. Images are
// [rows, channels, height, width] here: for this order, cuDNN has every algorithm for every type. The conventions are
// those of cuda_kernels.hpp.

#include "demos/common/convolution.hpp"
#include "demos/common/cuda_kernels.hpp"

namespace demos::cuda {

/// to [channels_out, channels_in, kernel, kernel] = from [kernel, kernel, channels_in, channels_out].
template <typename T>
void filter_to_channels_first(const Conv2dShape& shape, const T* from, T* to, CUstream_st* stream);
/// The other way round.
template <typename T>
void filter_to_channels_last(const Conv2dShape& shape, const T* from, T* to, CUstream_st* stream);

/// y = max(0, y + bias [channels_out]), where y is the output of a convolution.
template <typename T>
void image_bias_relu(std::size_t rows, const Conv2dShape& shape, const T* bias, T* y, CUstream_st* stream);

/// The gradient of image_bias_relu, computed from its output. See bias_relu_backward.
template <typename T>
void image_bias_relu_backward(std::size_t rows, const Conv2dShape& shape, const T* y, T* dy, T* dbias,
                              const Partials<T>& partials, CUstream_st* stream);

/// The position of the channels in a pooled image. kLast is the order that the weights of a dense layer expect.
enum class Channels : bool { kFirst, kLast };

/// See demos::max_pool_forward. `channels` is the order of y.
template <typename T>
void max_pool_forward(std::size_t rows, const Pool2dShape& shape, Channels channels, const T* x, T* y,
                      CUstream_st* stream);

/// See demos::max_pool_backward. `channels` is the order of dy.
template <typename T>
void max_pool_backward(std::size_t rows, const Pool2dShape& shape, Channels channels, const T* x, const T* dy, T* dx,
                       CUstream_st* stream);

}  // namespace demos::cuda
