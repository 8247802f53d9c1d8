#pragma once

// Batch normalisation with what stands beside it, ReLU and the sum at the end of a block, on a CUDA device: each pass over
// memory does all that it can. Needs no CUDA header. Everything is put on the stream and gives the same bits each time.
// Throws std::runtime_error where CUDA fails.
//
// Arrays are [positions, channels]: rows, height and width are one; channels are a multiple of 8. Activations are float32
// or bfloat16 (see CudaMath), everything else float32.

#include <cstddef>
#include <cstdint>

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
  float* partials;    // [kMostPartials, kMostSums, channels] of the widest normalisation
  unsigned* arrived;  // [kMostColumnGroups], zero before and after each use
  float* sums;        // two of [2 channels + 1], what is added up over the ranks
};
inline constexpr std::size_t kMostPartials = 264;
inline constexpr std::size_t kMostSums = 3;
inline constexpr std::size_t kMostColumnGroups = 64;  // of up to 8,192 channels

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
/// y = relu(normalised x + shortcut). Bit i of passes [positions, channels / 8] says of a vector's channel i whether its
/// gradient passes the ReLU; it may be null.
void apply_add_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut, void* y,
                    std::uint8_t* passes, CUstream_st* stream);
/// y = relu(normalised x + normalised shortcut), with `passes` as above.
void apply_two_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
                    const NormPlace& shortcut_norm, void* y, std::uint8_t* passes, CUstream_st* stream);

// The gradient of a normalisation takes two passes. The first adds up over the positions what the gradients of scale and
// shift and the second are made of; source: Ioffe, Szegedy, section 3. kOwn: it gives those gradients and norm.backward.
// kAll: it gives the gradients, and makes of its sums [2 channels + 1] what is added up over the ranks, the last being the
// number of positions; then backward_finish. The second pass gives dx, the gradient with respect to what was normalised.

/// Where a block's last normalisation is, and its shortcut's, the same pass serves both.
struct NormSide {
  const void* x;
  NormPlace norm;
  void* dx;     // written by the second pass
  float* sums;  // [2 channels + 1], with kAll
};

/// Of dy, the gradient with respect to relu(normalised x).
void backward_sums_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, const SumPlace& place,
                        Ranks ranks, CUstream_st* stream);
/// At the end of a block, whose output had the gradient g1 + g2 (g2 may be null): what `passes` lets through is written to
/// dz, which may be g1 or g2. The shortcut has a normalisation of its own, or null.
void backward_sums_block(CudaMath math, NormShape shape, const void* g1, const void* g2, const std::uint8_t* passes,
                         void* dz, const NormSide& last, const NormSide* shortcut, const SumPlace& place, Ranks ranks,
                         CUstream_st* stream);
void backward_finish(NormShape shape, const NormPlace& norm, const float* sums, CUstream_st* stream);

/// From dy as in backward_sums_relu; side.dx may be dy.
void backward_apply_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, CUstream_st* stream);
/// From dz as in backward_sums_block, which one of the sides' dx may be.
void backward_apply_block(CudaMath math, NormShape shape, const void* dz, const NormSide& last,
                          const NormSide* shortcut, CUstream_st* stream);

}  // namespace resnet::cuda
