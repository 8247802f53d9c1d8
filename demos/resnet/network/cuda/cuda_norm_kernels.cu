// The forward pass of batch normalisation: the statistics, and the kernels that use them.

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_norm_sums.cuh"
#include "demos/resnet/network/cuda/cuda_sums.cuh"
#include "demos/resnet/network/network.hpp"

namespace resnet::cuda {
namespace {

/// The sums are of x minus the running mean. If the running mean is close to the mean, no bits are lost when the
/// variance is computed as the mean of squares minus the square of the mean.
template <typename T>
__global__ void __launch_bounds__(kSumThreads, 2)
    statistics_kernel(NormShape shape, const T* x, NormPlace norm, SumPlace place, Ranks ranks) {
  const std::size_t channel = own_channel();
  Vector sums[2]{};
  if (channel < shape.channels) {
    const Vector center = load(norm.running_mean + channel);
    const auto load_at = [&](unsigned p) { return load_raw(x + p * shape.channels + channel); };
    for_own_positions<4, Direction::kDown>(static_cast<unsigned>(shape.positions), load_at,
                                           [&](unsigned, const Raw<T>& raw) {
                                             const Vector value = values_of(raw);
#pragma unroll
                                             for (int i = 0; i < kVector; ++i) {
                                               const float distance = value.v[i] - center.v[i];
                                               sums[0].v[i] += distance;
                                               sums[1].v[i] = fmaf(distance, distance, sums[1].v[i]);
                                             }
                                           });
  }
  sum_over_blocks(sums, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[2]) {
    finish_statistics(norm, c, shape, total[0], total[1], ranks);
  });
}

__global__ void own_sums_kernel(NormShape shape, NormPlace norm, float* sums) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < shape.channels) sums[c] = norm.mean[c] * static_cast<float>(shape.positions);
  if (c == shape.channels) sums[c] = static_cast<float>(shape.positions);
}

__global__ void own_deviations_kernel(NormShape shape, NormPlace norm, const float* sums, float* deviations) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= shape.channels) return;
  if (sums[shape.channels] == 0) {  // no rank has rows
    deviations[c] = 0;
    return;
  }
  const float distance = norm.mean[c] - sums[c] / sums[shape.channels];
  deviations[c] = norm.inverse_deviation[c] + static_cast<float>(shape.positions) * distance * distance;
}

__global__ void finish_kernel(NormShape shape, NormPlace norm, const float* sums, const float* deviations) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= shape.channels) return;
  const double count = static_cast<double>(sums[shape.channels]);
  if (count == 0) return;  // the running statistics do not change
  use_moments(norm, c, static_cast<double>(sums[c]) / count, static_cast<double>(deviations[c]) / count, count);
}

__global__ void use_running_kernel(std::size_t channels, NormPlace norm) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  const double factor = norm.scale[c] / sqrt(static_cast<double>(norm.running_variance[c]) + kNormEpsilon);
  norm.factor[c] = static_cast<float>(factor);
  norm.offset[c] = static_cast<float>(norm.shift[c] - norm.running_mean[c] * factor);
}

enum class Shortcut { kNone, kIdentity, kNormalised };

template <typename T>
struct Pair {
  Raw<T> first;
  Raw<T> second;
};

template <typename T, Shortcut kShortcut>
__global__ void __launch_bounds__(kThreads) apply_kernel(NormShape shape, const T* x, NormPlace norm, const T* shortcut,
                                                         NormPlace shortcut_norm, T* y, std::uint8_t* passes) {
  const std::size_t channel = own_channel();
  if (channel >= shape.channels) return;
  const Vector factor = load(norm.factor + channel);
  Vector offset = load(norm.offset + channel);
  Vector shortcut_factor{};
  if constexpr (kShortcut == Shortcut::kNormalised) {
    shortcut_factor = load(shortcut_norm.factor + channel);
    const Vector more = load(shortcut_norm.offset + channel);
#pragma unroll
    for (int i = 0; i < kVector; ++i) offset.v[i] += more.v[i];
  }
  const auto load_at = [&](unsigned p) {
    const std::size_t at = p * shape.channels + channel;
    Pair<T> pair{load_raw(x + at), {}};
    if constexpr (kShortcut != Shortcut::kNone) pair.second = load_raw(shortcut + at);
    return pair;
  };
  for_own_positions<kPositionsAtOnce<T>, Direction::kUp>(
      static_cast<unsigned>(shape.positions), load_at, [&](unsigned p, const Pair<T>& pair) {
        const std::size_t at = p * shape.channels + channel;
        Vector value = values_of(pair.first);
        const Vector added = values_of(pair.second);
        unsigned passing = 0;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          float sum = fmaf(factor.v[i], value.v[i], offset.v[i]);
          if constexpr (kShortcut == Shortcut::kIdentity) sum += added.v[i];
          if constexpr (kShortcut == Shortcut::kNormalised) sum = fmaf(shortcut_factor.v[i], added.v[i], sum);
          value.v[i] = sum < 0.0F ? 0.0F : sum;               // a NaN stays NaN
          passing |= (sum <= 0.0F ? 0U : 1U) << unsigned(i);  // and its gradient passes
        }
        store(y + at, value);
        if constexpr (kShortcut != Shortcut::kNone) {
          if (passes != nullptr) passes[at / kVector] = static_cast<std::uint8_t>(passing);
        }
      });
}

unsigned channel_blocks(std::size_t channels) { return static_cast<unsigned>((channels + kThreads) / kThreads); }

template <Shortcut kShortcut>
void apply(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
           const NormPlace& shortcut_norm, void* y, std::uint8_t* passes, CUstream_st* stream) {
  if (shape.positions == 0) return;
  const Layout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("normalising", apply_kernel<T, kShortcut>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(x), norm, static_cast<const T*>(shortcut), shortcut_norm, static_cast<T*>(y), passes);
  });
}

}  // namespace

void statistics(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const SumPlace& place,
                Ranks ranks, CUstream_st* stream) {
  const SumLayout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("statistics of a batch", statistics_kernel<T>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(x), norm, place, ranks);
  });
}

void statistics_own_sums(NormShape shape, const NormPlace& norm, float* sums, CUstream_st* stream) {
  launch("statistics of a batch", own_sums_kernel, channel_blocks(shape.channels), kThreads, stream, shape, norm, sums);
}
void statistics_own_deviations(NormShape shape, const NormPlace& norm, const float* sums, float* deviations,
                               CUstream_st* stream) {
  launch("statistics of a batch", own_deviations_kernel, channel_blocks(shape.channels), kThreads, stream, shape, norm,
         sums, deviations);
}
void statistics_finish(NormShape shape, const NormPlace& norm, const float* sums, const float* deviations,
                       CUstream_st* stream) {
  launch("statistics of a batch", finish_kernel, channel_blocks(shape.channels), kThreads, stream, shape, norm, sums,
         deviations);
}

void use_running(std::size_t channels, const NormPlace& norm, CUstream_st* stream) {
  launch("running statistics", use_running_kernel, channel_blocks(channels), kThreads, stream, channels, norm);
}

void apply_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, void* y, CUstream_st* stream) {
  apply<Shortcut::kNone>(math, shape, x, norm, nullptr, norm, y, nullptr, stream);
}
void apply_add_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut, void* y,
                    std::uint8_t* passes, CUstream_st* stream) {
  apply<Shortcut::kIdentity>(math, shape, x, norm, shortcut, norm, y, passes, stream);
}
void apply_two_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
                    const NormPlace& shortcut_norm, void* y, std::uint8_t* passes, CUstream_st* stream) {
  apply<Shortcut::kNormalised>(math, shape, x, norm, shortcut, shortcut_norm, y, passes, stream);
}

}  // namespace resnet::cuda
