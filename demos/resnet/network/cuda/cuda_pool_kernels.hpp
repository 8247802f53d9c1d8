#pragma once

// The max-pool after the first convolution of a residual network, on a CUDA device, fused with the normalisation and
// the ReLU before it. So the only array of the size of the convolution's output that these kernels write is its
// gradient. This header needs no CUDA header. The functions put their work on the stream, and give the same bits each
// time. They throw std::runtime_error if CUDA fails. Activations are float32 or bfloat16 (see CudaMath), with channels
// last.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"

namespace resnet::cuda {

/// The shape of a 3x3 max-pool with stride 2 and a border of 1. x is [rows, size, size, channels].
struct PoolShape {
  std::size_t rows;
  std::size_t size;
  std::size_t channels;  // a multiple of 8
  constexpr std::size_t size_out() const { return (size - 1) / 2 + 1; }
};

/// y [rows, size_out, size_out, channels] = the largest value of each window of relu(normalised x). `which`, with the
/// shape of y, gets the number of that pixel in the window. If several values are equal, it is the first one. A NaN
/// counts as the largest value, and stays NaN.
void pool_forward(CudaMath math, const PoolShape& shape, const void* x, const NormPlace& norm, void* y,
                  std::uint8_t* which, CUstream_st* stream);

/// The gradient of y, g1 + g2 (g2 may be null), with `which` of pool_forward.
struct PoolGradient {
  const void* g1;
  const void* g2;
  const std::uint8_t* which;
};
/// The first pass of the gradient of the normalisation: see backward_sums_relu.
void pool_backward_sums(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream);
/// The second pass. side.dx becomes the gradient with respect to x.
void pool_backward_apply(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                         CUstream_st* stream);

}  // namespace resnet::cuda
