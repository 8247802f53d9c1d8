#pragma once

// The max-pool that follows a residual network's first convolution, on a CUDA device, together with the normalisation and
// the ReLU before it: nothing of the size of that convolution's output is written but the gradient of it. Needs no CUDA
// header. Everything is put on the stream and gives the same bits each time. Throws std::runtime_error where CUDA fails.
// Activations are float32 or bfloat16 (see CudaMath), channels last.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/cuda_norm_kernels.hpp"

namespace resnet::cuda {

/// Where the max-pool 3x3, by steps of 2, with a border of 1, goes from x [rows, size, size, channels].
struct PoolShape {
  std::size_t rows;
  std::size_t size;
  std::size_t channels;  // a multiple of 8
  constexpr std::size_t size_out() const { return (size - 1) / 2 + 1; }
};

/// y [rows, size_out, size_out, channels] = the largest of each window of relu(normalised x); which [like y] is that
/// pixel's number in the window, the first of equals. What is no number is taken, and stays.
void pool_forward(CudaMath math, const PoolShape& shape, const void* x, const NormPlace& norm, void* y,
                  std::uint8_t* which, CUstream_st* stream);

/// The gradient g1 + g2 (g2 may be null) of y, on its way back.
struct PoolGradient {
  const void* g1;
  const void* g2;
  const std::uint8_t* which;
};
/// The first pass of the normalisation's gradient: see backward_sums_relu.
void pool_backward_sums(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream);
/// The second: side.dx is the gradient with respect to x.
void pool_backward_apply(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                         CUstream_st* stream);

}  // namespace resnet::cuda
