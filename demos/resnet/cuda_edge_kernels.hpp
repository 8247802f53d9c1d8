#pragma once

// The two ends of a residual network on a CUDA device: from stored images to the first block, and from the last one to the
// loss. Needs no CUDA header. Everything is put on the stream and gives the same bits each time. Throws std::runtime_error
// where CUDA fails. Activations are float32 or bfloat16 (see CudaMath), channels last.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/cuda_convolution.hpp"
#include "demos/resnet/images.hpp"
#include "demos/resnet/network.hpp"

namespace resnet::cuda {

/// Channels of the image as the first convolution reads it: three, and zeros, since tensor cores want eight.
inline constexpr std::size_t kImageChannels = 8;

/// images uint8 [rows, height, width, 3] become y [rows, crop, crop, kImageChannels]: see prepare_images. row_ids [rows]
/// and key are in device memory; row_ids may be null where key->is_random is false.
void prepare(CudaMath math, std::size_t rows, const std::uint8_t* images, const ImageShape& shape,
             const Preparation& preparation, const std::int64_t* row_ids, const AugmentKey* key, void* y,
             CUstream_st* stream);
/// images float32 [rows, size, size, 3], normalised already, become y as above.
void widen(CudaMath math, std::size_t rows, std::size_t size, const float* images, void* y, CUstream_st* stream);

/// The first filters [count, 3] (count: channels x kernel x kernel) become [count, kImageChannels].
void widen_filter(CudaMath math, std::size_t count, const float* filter, void* wide, CUstream_st* stream);
/// And back: the gradient of the wide filters becomes that of the narrow ones.
void narrow_filter_gradient(CudaMath math, std::size_t count, const void* wide, float* gradient, CUstream_st* stream);

/// Elements [first, first + count) of the flat vectors.
struct Chunk {
  std::size_t first;
  std::size_t count;
};
inline constexpr std::size_t kMostInChunk = 8192;
/// values float32 to narrow bfloat16, and back, in these chunks (in device memory).
void to_bfloat16(const Chunk* chunks, std::size_t chunk_count, const float* values, void* narrow, CUstream_st* stream);
void from_bfloat16(const Chunk* chunks, std::size_t chunk_count, const void* narrow, float* values,
                   CUstream_st* stream);

/// Where the max-pool 3x3, by steps of 2, with a border of 1, goes from x [rows, size, size, channels].
struct PoolShape {
  std::size_t rows;
  std::size_t size;
  std::size_t channels;  // a multiple of 8
  constexpr std::size_t size_out() const { return (size - 1) / 2 + 1; }
};
/// y [rows, size_out, size_out, channels] = the largest of each window of relu(factor x + offset); which [like y] is that
/// pixel's number in the window, the first of equals.
void pool_forward(CudaMath math, const PoolShape& shape, const void* x, const float* factor, const float* offset,
                  void* y, std::uint8_t* which, CUstream_st* stream);
/// dx = the gradient g1 + g2 (g2 may be null) of y with respect to what was pooled.
void pool_backward(CudaMath math, const PoolShape& shape, const void* g1, const void* g2, const std::uint8_t* which,
                   void* dx, CUstream_st* stream);

/// y [rows, channels] = the mean of x [rows, positions, channels] over positions.
void mean_forward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* x, void* y,
                  CUstream_st* stream);
void mean_backward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* dy,
                   void* dx, CUstream_st* stream);

/// Where the loss goes.
struct LossPlace {
  double* row_losses;         // [rows]
  std::int32_t* row_correct;  // [rows]
  double* mean_loss;
  std::int64_t* correct;
};
/// Softmax cross-entropy over logits [rows, classes] float32, to which bias [classes] is added in place first. The target
/// of a row is 1 - s for its label plus s / classes for every class. dlogits, where not null, becomes the gradient of the
/// mean. A label out of range makes the loss NaN. Source: C. Szegedy et al., "Rethinking the Inception Architecture for
/// Computer Vision", arXiv 1512.00567, section 7.
void loss(CudaMath math, std::size_t rows, std::size_t classes, float* logits, const float* bias,
          const std::int64_t* labels, const LossOptions& options, void* dlogits, const LossPlace& place,
          CUstream_st* stream);
/// dbias [classes] = the sum of dlogits over rows.
void bias_backward(CudaMath math, std::size_t rows, std::size_t classes, const void* dlogits, float* dbias,
                   CUstream_st* stream);

}  // namespace resnet::cuda
