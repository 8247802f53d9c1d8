#pragma once

// Turns stored images into the input of the first convolution of a residual network, on a CUDA device. This header
// needs no CUDA header. The functions put their work on the stream, and give the same bits each time. They throw
// std::runtime_error if CUDA fails.
//
// A 7x7 convolution with stride 2 over three channels leaves tensor cores idle. A 4x4 convolution with stride 1 can
// compute the same sums. For this, each 2x2 pixels of the image become one pixel of twelve channels, and the image gets
// a border of two such pixels before and one after. The sums are the same because, with k = 2 a + b - 1, the line 2 y +
// k - 3 (0 <= k < 7) is the line 2 (y + a - 2) + b. Images and filters in this form are called folded.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/network/cuda/cuda_convolution.hpp"
#include "demos/resnet/network/images.hpp"

namespace resnet::cuda {

inline constexpr std::size_t kStemKernel = 7;    // with stride 2 and a border of 3
inline constexpr std::size_t kFoldedKernel = 4;  // with stride 1 and no border
/// Twelve channels, and four of zeros: tensor cores require a multiple of eight.
inline constexpr std::size_t kFoldedChannels = 16;
/// Height and width of a folded image, with its border.
constexpr std::size_t folded_size(std::size_t size) { return (size + 1) / 2 + kFoldedKernel - 1; }

/// Prepares images (see prepare_images) and folds them: uint8 [rows, height, width, 3] becomes y [rows, folded, folded,
/// kFoldedChannels], where folded is folded_size(crop). row_ids [rows] and key are in device memory. row_ids may be
/// null if key->is_random is false.
void prepare(CudaMath math, std::size_t rows, const std::uint8_t* images, const ImageShape& shape,
             const Preparation& preparation, const std::int64_t* row_ids, const AugmentKey* key, void* y,
             CUstream_st* stream);
/// Folds images that are already normalised: float32 [rows, size, size, 3] becomes y as above.
void fold(CudaMath math, std::size_t rows, std::size_t size, const float* images, void* y, CUstream_st* stream);

/// Folds the filters of the first convolution: [count, 7, 7, 3] becomes [count, 4, 4, kFoldedChannels].
void fold_filter(CudaMath math, std::size_t count, const float* filter, void* folded, CUstream_st* stream);
/// Turns the gradient of the folded filters into the gradient of the filters.
void unfold_filter_gradient(CudaMath math, std::size_t count, const void* folded, float* gradient, CUstream_st* stream);

}  // namespace resnet::cuda
