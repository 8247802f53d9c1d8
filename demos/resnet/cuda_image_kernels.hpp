#pragma once

// From stored images to what the first convolution of a residual network reads, on a CUDA device. Needs no CUDA header.
// Everything is put on the stream and gives the same bits each time. Throws std::runtime_error where CUDA fails.
//
// A 7x7 convolution by steps of 2 over three channels leaves tensor cores idle. The same sums are those of a 4x4 convolution
// by steps of 1 over an image in which each 2x2 pixels are one of twelve channels, with a border of two before and one
// after: with k = 2 a + b - 1, what is 2 y + k - 3 for 0 <= k < 7 is 2 (y + a - 2) + b. Images and filters are folded so.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/cuda_convolution.hpp"
#include "demos/resnet/images.hpp"

namespace resnet::cuda {

inline constexpr std::size_t kStemKernel = 7;    // by steps of 2, with a border of 3
inline constexpr std::size_t kFoldedKernel = 4;  // by steps of 1, without a border
/// Twelve, and zeros: tensor cores want a multiple of eight.
inline constexpr std::size_t kFoldedChannels = 16;
/// Height and width of an image when folded, border included.
constexpr std::size_t folded_size(std::size_t size) { return (size + 1) / 2 + kFoldedKernel - 1; }

/// images uint8 [rows, height, width, 3] become y [rows, folded, folded, kFoldedChannels], folded being
/// folded_size(crop): see prepare_images. row_ids [rows] and key are in device memory; row_ids may be null where
/// key->is_random is false.
void prepare(CudaMath math, std::size_t rows, const std::uint8_t* images, const ImageShape& shape,
             const Preparation& preparation, const std::int64_t* row_ids, const AugmentKey* key, void* y,
             CUstream_st* stream);
/// images float32 [rows, size, size, 3], normalised already, become y as above.
void fold(CudaMath math, std::size_t rows, std::size_t size, const float* images, void* y, CUstream_st* stream);

/// The first filters [count, 7, 7, 3] become [count, 4, 4, kFoldedChannels].
void fold_filter(CudaMath math, std::size_t count, const float* filter, void* folded, CUstream_st* stream);
/// And back: the gradient of the folded filters becomes that of the filters.
void unfold_filter_gradient(CudaMath math, std::size_t count, const void* folded, float* gradient, CUstream_st* stream);

}  // namespace resnet::cuda
