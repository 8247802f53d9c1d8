#pragma once

// The first convolution of a residual network, over folded images (see cuda_image_kernels.hpp), as a matrix product of
// bfloat16 that takes the statistics of what it gives: for images whose output is so wide. Needs no CUDA header. Everything is
// put on the stream and gives the same bits each time. Throws std::runtime_error where CUDA fails.

#include <cstddef>

#include "demos/resnet/cuda_image_kernels.hpp"
#include "demos/resnet/cuda_norm_kernels.hpp"
#include "demos/resnet/cuda_pool_kernels.hpp"
#include "demos/resnet/cuda_product_kernels.hpp"

namespace resnet::cuda {

/// From x [rows, folded, folded, kFoldedChannels], folded being size_out + kFoldedKernel - 1, to y [rows, size_out, size_out,
/// kStemChannels].
struct StemShape {
  std::size_t rows;
  std::size_t size_out;
};
inline constexpr std::size_t kStemChannels = 64;
inline constexpr std::size_t kStemWidth = 112;  // of y that a product is for: of an image of 224

/// Whether there is a kernel for that.
constexpr bool has_stem_product(std::size_t size_out, std::size_t channels) {
  return size_out > 0 && size_out % kStemWidth == 0 && channels == kStemChannels;
}

/// For product_device: before the first use.
void make_room_for_stem();
void make_room_for_stem_backward();

/// y = x convolved with a folded filter [kStemChannels, kFoldedKernel, kFoldedKernel, kFoldedChannels]; and what `statistics`
/// makes of y.
void stem_statistics(const ProductDevice& device, const StemShape& shape, const void* x, const void* filter, void* y,
                     const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream);

/// How many elements of scratch stem_filter_gradient wants.
std::size_t stem_scratch_elements(const ProductDevice& device);
/// After pool_backward_sums: the gradient of the filter [kStemChannels, kStemKernel, kStemKernel, 3], as pool_backward_apply and
/// a convolution's would give it, but that nothing of the size of y is written. side.x is y; side.dx is not used.
void stem_filter_gradient(const ProductDevice& device, const StemShape& shape, const void* x,
                          const PoolGradient& gradient, const NormSide& side, float* scratch, float* filter_gradient,
                          CUstream_st* stream);

}  // namespace resnet::cuda
