#pragma once

// The end of a residual network on a CUDA device, from the last block to the loss, and conversions of parameters. This
// header needs no CUDA header. The functions put their work on the stream, and give the same bits each time. They throw
// std::runtime_error if CUDA fails. Activations are float32 or bfloat16 (see CudaMath), with channels last.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/network/cuda/cuda_convolution.hpp"
#include "demos/resnet/network/network.hpp"

namespace resnet::cuda {

/// Elements [first, first + count) of the flat vectors.
struct Chunk {
  std::size_t first;
  std::size_t count;
};
inline constexpr std::size_t kMostInChunk = 8192;
/// Converts these chunks from float32 `values` to bfloat16 `narrow`, or back. `chunks` is in device memory.
void to_bfloat16(const Chunk* chunks, std::size_t chunk_count, const float* values, void* narrow, CUstream_st* stream);
void from_bfloat16(const Chunk* chunks, std::size_t chunk_count, const void* narrow, float* values,
                   CUstream_st* stream);

/// y [rows, channels] = the mean of x [rows, positions, channels] over positions.
void mean_forward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* x, void* y,
                  CUstream_st* stream);
void mean_backward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* dy,
                   void* dx, CUstream_st* stream);

/// The results of `loss`, in device memory.
struct LossPlace {
  double* row_losses;         // [rows]
  std::int32_t* row_correct;  // [rows]
  double* mean_loss;
  std::int64_t* correct;
};
/// Softmax cross-entropy over logits [rows, classes] in float32. It first adds bias [classes] to the logits, in place.
/// The target of a row is 1 - s for its label plus s / classes for every class, where s is the label smoothing. If
/// dlogits is not null, it becomes the gradient of the mean. A label out of range makes the loss NaN. Source: C.
/// Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567, section 7.
void loss(CudaMath math, std::size_t rows, std::size_t classes, float* logits, const float* bias,
          const std::int64_t* labels, const LossOptions& options, void* dlogits, const LossPlace& place,
          CUstream_st* stream);
/// dbias [classes] = the sum of dlogits over rows.
void bias_backward(CudaMath math, std::size_t rows, std::size_t classes, const void* dlogits, float* dbias,
                   CUstream_st* stream);

}  // namespace resnet::cuda
