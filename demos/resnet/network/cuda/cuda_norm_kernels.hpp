#pragma once

// Batch normalisation on a CUDA device, fused with the operations beside it: ReLU, and the sum at the end of a block.
// So there are as few passes over memory as possible. This header needs no CUDA header. The functions put their work on
// the stream, and give the same bits each time. They throw std::runtime_error if CUDA fails.
//
// Arrays are [positions, channels]. The positions combine rows, height and width. The number of channels is a multiple
// of 8. Activations are float32 or bfloat16 (see CudaMath). Everything else is float32.

#include <cstddef>
#include <cstdint>

#include "demos/resnet/network/cuda/cuda_convolution.hpp"

namespace resnet::cuda {

struct NormShape {
  std::size_t positions;
  std::size_t channels;
};

/// The parameters of a normalisation, and the values that are computed from a batch. Each is [channels] unless noted.
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

/// Scratch memory for sums.
struct SumPlace {
  float* partials;    // [kMostPartials, kMostSums, channels] of the widest normalisation
  unsigned* arrived;  // [kMostColumnGroups], zero before and after each use
  float* sums;        // two arrays [2 channels + 1], which are added up over the ranks
};
inline constexpr std::size_t kMostPartials = 264;
inline constexpr std::size_t kMostSums = 3;
inline constexpr std::size_t kMostColumnGroups = 64;  // enough for 8,192 channels

/// Says whether normalisation uses the sums of this rank only, or the caller adds them up over all ranks.
enum class Ranks { kOwn, kAll };

/// Mean and variance of x over the positions. With kOwn, it completes `norm` and updates the running statistics. With
/// kAll, norm.mean and norm.inverse_deviation hold this rank's mean and sum of squared deviations until
/// statistics_finish. The running variance is the unbiased one. Source: S. Ioffe, C. Szegedy, "Batch Normalization",
/// arXiv 1502.03167, algorithm 1.
void statistics(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const SumPlace& place,
                Ranks ranks, CUstream_st* stream);
/// With kAll, the caller calls these three functions after `statistics`, and makes two additions over the ranks between
/// them. statistics_own_sums sets `sums` [channels + 1] to the sums of values and the number of positions, and the
/// caller adds them up. statistics_own_deviations sets `deviations` [channels] to the sums of squared deviations from
/// the mean of all ranks, and the caller adds them up. statistics_finish completes `norm`.
void statistics_own_sums(NormShape shape, const NormPlace& norm, float* sums, CUstream_st* stream);
void statistics_own_deviations(NormShape shape, const NormPlace& norm, const float* sums, float* deviations,
                               CUstream_st* stream);
void statistics_finish(NormShape shape, const NormPlace& norm, const float* sums, const float* deviations,
                       CUstream_st* stream);

/// Computes factor and offset from the running statistics.
void use_running(std::size_t channels, const NormPlace& norm, CUstream_st* stream);

/// y = relu(normalised x).
void apply_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, void* y, CUstream_st* stream);
/// y = relu(normalised x + shortcut). `passes` [positions, channels / 8] has one byte for each vector of 8 channels:
/// bit i says whether the gradient of channel i passes the ReLU. It may be null.
void apply_add_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut, void* y,
                    std::uint8_t* passes, CUstream_st* stream);
/// y = relu(normalised x + normalised shortcut), with `passes` as above.
void apply_two_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
                    const NormPlace& shortcut_norm, void* y, std::uint8_t* passes, CUstream_st* stream);

// The gradient of a normalisation takes two passes. The first pass computes sums over the positions and from them the
// gradients of scale and shift. With kOwn, it also computes norm.backward. With kAll, it sets side.sums [2 channels +
// 1] instead, the last of which is the number of positions. The caller adds these up over the ranks, and then calls
// backward_finish, which computes norm.backward. The second pass computes dx, the gradient with respect to the input of
// the normalisation. Source: Ioffe, Szegedy, section 3.

/// One normalisation of a backward pass. At the end of a block, the same pass serves the block's last normalisation and
/// that of its shortcut.
struct NormSide {
  const void* x;
  NormPlace norm;
  void* dx;     // written by the second pass
  float* sums;  // [2 channels + 1], with kAll
};

/// The first pass for dy, the gradient with respect to relu(normalised x).
void backward_sums_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, const SumPlace& place,
                        Ranks ranks, CUstream_st* stream);
/// The first pass at the end of a block. The gradient of the block's output is g1 + g2 (g2 may be null). The part of it
/// that passes the ReLU, according to `passes`, is written to dz, which may be g1 or g2. `shortcut` is null if the
/// shortcut has no normalisation.
void backward_sums_block(CudaMath math, NormShape shape, const void* g1, const void* g2, const std::uint8_t* passes,
                         void* dz, const NormSide& last, const NormSide* shortcut, const SumPlace& place, Ranks ranks,
                         CUstream_st* stream);
void backward_finish(NormShape shape, const NormPlace& norm, const float* sums, CUstream_st* stream);

/// The second pass, with dy as in backward_sums_relu. side.dx may be dy.
void backward_apply_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, CUstream_st* stream);
/// The second pass, with dz as in backward_sums_block. The dx of one of the sides may be dz.
void backward_apply_block(CudaMath math, NormShape shape, const void* dz, const NormSide& last,
                          const NormSide* shortcut, CUstream_st* stream);

}  // namespace resnet::cuda
