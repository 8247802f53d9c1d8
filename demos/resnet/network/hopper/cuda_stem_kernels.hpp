#pragma once

// The first convolution of a residual network, over folded images (see cuda_image_kernels.hpp), as a matrix product of
// bfloat16. The kernel also computes the statistics of its output. Only some sizes are supported (see
// has_stem_product). This header needs no CUDA header. The functions put their work on the stream, and give the same
// bits each time. They throw std::runtime_error if CUDA fails.

#include <cstddef>

#include "demos/resnet/network/cuda/cuda_image_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_pool_kernels.hpp"
#include "demos/resnet/network/hopper/cuda_product_kernels.hpp"

namespace resnet::cuda {

/// The shape of the first convolution. x is [rows, folded, folded, kFoldedChannels], where folded is
/// size_out + kFoldedKernel - 1. y is [rows, size_out, size_out, kStemChannels].
struct StemShape {
  std::size_t rows;
  std::size_t size_out;
};
inline constexpr std::size_t kStemChannels = 64;
inline constexpr std::size_t kStemWidth = 112;  // positions of a line of y in a tile; y of a 224 x 224 image is as wide

/// Returns whether there is a kernel for this size and number of channels.
constexpr bool has_stem_product(std::size_t size_out, std::size_t channels) {
  return size_out > 0 && size_out % kStemWidth == 0 && channels == kStemChannels;
}

/// Let the kernels use enough shared memory. product_device calls these before the first use of a kernel.
void make_room_for_stem();
void make_room_for_stem_backward();

/// y = x convolved with a folded filter [kStemChannels, kFoldedKernel, kFoldedKernel, kFoldedChannels]. Also computes
/// what `statistics` computes from y.
void stem_statistics(const ProductDevice& device, const StemShape& shape, const void* x, const void* filter, void* y,
                     const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream);

/// The number of elements of scratch memory that stem_filter_gradient requires.
std::size_t stem_scratch_elements(const ProductDevice& device);
/// Computes the gradient of the filter [kStemChannels, kStemKernel, kStemKernel, 3]. Call it after pool_backward_sums.
/// It replaces pool_backward_apply and the backward pass of a convolution, and writes no array of the size of y. side.x
/// is y. side.dx is not used.
void stem_filter_gradient(const ProductDevice& device, const StemShape& shape, const void* x,
                          const PoolGradient& gradient, const NormSide& side, float* scratch, float* filter_gradient,
                          CUstream_st* stream);

}  // namespace resnet::cuda
