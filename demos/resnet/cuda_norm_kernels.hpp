#pragma once

// Batch normalisation with what stands beside it, ReLU and the sum at the end of a block, on a CUDA device: each pass over
// memory does all that it can. Needs no CUDA header. Everything is put on the stream and gives the same bits each time.
// Throws std::runtime_error where CUDA fails.
//
// Arrays are [positions, channels]: rows, height and width are one; channels are a multiple of 8. Activations are float32
// or bfloat16 (see CudaMath), everything else float32.

#include <cstddef>

#include "demos/resnet/cuda_convolution.hpp"

namespace resnet::cuda {

struct NormShape {
  std::size_t positions;
  std::size_t channels;
};

/// A normalisation's parameters, and what is computed of a batch; each [channels], but for sums.
struct NormPlace {
  const float* scale;  // gamma
  const float* shift;  // beta
  float* running_mean;
  float* running_variance;
  float* factor;  // y = factor x + offset
  float* offset;
  float* mean;
  float* inverse_deviation;
  float* backward;  // [3, channels]: dx = backward[0] dy + backward[1] x + backward[2]
  float* scale_gradient;
  float* shift_gradient;
};

/// Scratch for sums.
struct SumPlace {
  float* partials;  // [kMostPartials, 2, channels] of the widest normalisation
  float* sums;      // [2 channels + 1]
};
inline constexpr std::size_t kMostPartials = 528;

/// Whether the sums of this rank are all there is, or will be added up over the ranks.
enum class Ranks { kOwn, kAll };

/// Mean and variance of x over the positions. kOwn: and all that follows from them, in `norm`; the running ones move. kAll:
/// this rank's mean and sum of squared deviations stay in norm.mean and norm.inverse_deviation until statistics_meet.
/// Source: S. Ioffe, C. Szegedy, "Batch Normalization", arXiv 1502.03167, algorithm 1; the running variance is the unbiased
/// one.
void statistics(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const SumPlace& place,
                Ranks ranks, CUstream_st* stream);
/// With kAll, what comes between two additions over the ranks, and after the second: sums [channels + 1] becomes the sum
/// of values and the number of positions; then, once that was added up, the sum of squared deviations from the mean of all
/// ranks [channels]; once that was, `norm` is complete.
void statistics_own_sums(NormShape shape, const NormPlace& norm, float* sums, CUstream_st* stream);
void statistics_own_deviations(NormShape shape, const NormPlace& norm, const float* sums, float* deviations,
                               CUstream_st* stream);
void statistics_finish(NormShape shape, const NormPlace& norm, const float* sums, const float* deviations,
                       CUstream_st* stream);

/// factor and offset from the running statistics.
void use_running(std::size_t channels, const NormPlace& norm, CUstream_st* stream);

/// y = relu(normalised x).
void apply_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, void* y, CUstream_st* stream);
/// y = relu(normalised x + shortcut).
void apply_add_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut, void* y,
                    CUstream_st* stream);
/// y = relu(normalised x + normalised shortcut).
void apply_two_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
                    const NormPlace& shortcut_norm, void* y, CUstream_st* stream);

/// Given dy, the gradient with respect to relu(normalised x): the sums over positions, in place.sums [2 channels], that the
/// gradients are made of. Source: Ioffe, Szegedy, section 3.
void backward_sums_relu(CudaMath math, NormShape shape, const void* dy, const void* x, const NormPlace& norm,
                        const SumPlace& place, CUstream_st* stream);
/// The same at the end of a block. Its output y had the gradient g1 + g2 (g2 may be null); what passes the ReLU is written
/// to dz, which may be g1 or g2.
void backward_sums_block(CudaMath math, NormShape shape, const void* g1, const void* g2, const void* y, const void* x,
                         const NormPlace& norm, void* dz, const SumPlace& place, CUstream_st* stream);
/// The same of dz, which has passed already.
void backward_sums(CudaMath math, NormShape shape, const void* dz, const void* x, const NormPlace& norm,
                   const SumPlace& place, CUstream_st* stream);
/// From the sums: the gradients of scale and shift, and norm.backward. With kAll, gives the gradients and makes of the sums
/// what is added up over the ranks, the last being the number of positions; then backward_finish.
void backward_own(NormShape shape, const NormPlace& norm, float* sums, Ranks ranks, CUstream_st* stream);
void backward_finish(NormShape shape, const NormPlace& norm, const float* sums, CUstream_st* stream);

/// dx, the gradient with respect to what was normalised, from dy as in backward_sums_relu; dx may be dy.
void backward_apply_relu(CudaMath math, NormShape shape, const void* dy, const void* x, const NormPlace& norm, void* dx,
                         CUstream_st* stream);
/// The same from dz.
void backward_apply(CudaMath math, NormShape shape, const void* dz, const void* x, const NormPlace& norm, void* dx,
                    CUstream_st* stream);

}  // namespace resnet::cuda
