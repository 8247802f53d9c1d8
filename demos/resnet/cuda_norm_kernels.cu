#include "demos/resnet/cuda_norm_kernels.hpp"

#include "demos/resnet/cuda_elements.cuh"
#include "demos/resnet/network.hpp"

namespace resnet::cuda {

static_assert(kMostPartials == kMostBlocks, "as many partial sums are written as blocks are started");

namespace {

struct Two {
  Vector first;
  Vector second;
};

/// Adds up two values per channel over this block's threads; the first row of threads writes the block's partial sums:
/// partials [row groups, 2, channels].
__device__ void write_partials(const Two& own, std::size_t channels, float* partials) {
  __shared__ float memory[kThreads][2 * kVector + 1];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    memory[thread][i] = own.first.v[i];
    memory[thread][kVector + i] = own.second.v[i];
  }
  __syncthreads();
  const std::size_t begin = blockIdx.y * blockDim.x * std::size_t{kVector};
  const unsigned width = blockDim.x * kVector;
  for (unsigned i = thread; i < 2 * width; i += blockDim.x * blockDim.y) {
    const unsigned which = i / width;
    const unsigned channel = i % width;
    if (begin + channel >= channels) continue;
    float sum = 0;
    for (unsigned row = 0; row < blockDim.y; ++row) {
      sum += memory[row * blockDim.x + channel / kVector][which * kVector + channel % kVector];
    }
    partials[(blockIdx.x * 2 + which) * channels + begin + channel] = sum;
  }
}

/// Of x less the running mean: where that is about the mean, nothing cancels when the square of a mean is taken off a mean
/// of squares.
template <typename T>
__global__ void statistics_partials(NormShape shape, const T* x, NormPlace norm, float* partials) {
  const std::size_t channel = own_channel();
  Two sums{};
  if (channel < shape.channels) {
    const Vector center = load(norm.running_mean + channel);
    for_own_positions(shape.positions, [&](std::size_t p) {
      const Vector value = load(x + p * shape.channels + channel);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float distance = value.v[i] - center.v[i];
        sums.first.v[i] += distance;
        sums.second.v[i] += distance * distance;
      }
    });
  }
  write_partials(sums, shape.channels, partials);
}

/// What follows from mean and biased variance.
__device__ void finish(const NormPlace& norm, std::size_t c, double mean, double variance, double positions) {
  const double inverse = 1.0 / sqrt(variance + kNormEpsilon);
  norm.mean[c] = static_cast<float>(mean);
  norm.inverse_deviation[c] = static_cast<float>(inverse);
  norm.factor[c] = static_cast<float>(norm.scale[c] * inverse);
  norm.offset[c] = static_cast<float>(norm.shift[c] - mean * norm.scale[c] * inverse);
  const double unbiased = positions > 1 ? variance * positions / (positions - 1) : variance;
  norm.running_mean[c] = static_cast<float>((1 - kNormMomentum) * norm.running_mean[c] + kNormMomentum * mean);
  norm.running_variance[c] =
      static_cast<float>((1 - kNormMomentum) * norm.running_variance[c] + kNormMomentum * unbiased);
}

constexpr unsigned kCombineChannels = 32;
constexpr unsigned kCombineRows = 32;

/// The sums over all partials for channel blockIdx.x * 32 + threadIdx.x, valid in the threads with threadIdx.y == 0.
__device__ void combine(const float* partials, unsigned groups, std::size_t channels, double& first, double& second) {
  __shared__ double memory[2][kCombineRows][kCombineChannels];
  const std::size_t c = blockIdx.x * kCombineChannels + threadIdx.x;
  first = 0;
  second = 0;
  if (c < channels) {
#pragma unroll 4
    for (unsigned group = threadIdx.y; group < groups; group += kCombineRows) {
      first += static_cast<double>(partials[(2 * group) * channels + c]);
      second += static_cast<double>(partials[(2 * group + 1) * channels + c]);
    }
  }
  memory[0][threadIdx.y][threadIdx.x] = first;
  memory[1][threadIdx.y][threadIdx.x] = second;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (unsigned row = 1; row < kCombineRows; ++row) {
    first += memory[0][row][threadIdx.x];
    second += memory[1][row][threadIdx.x];
  }
}

__global__ void statistics_combine(NormShape shape, const float* partials, unsigned groups, NormPlace norm,
                                   Ranks ranks) {
  double sum = 0;
  double squares = 0;
  combine(partials, groups, shape.channels, sum, squares);
  const std::size_t c = blockIdx.x * kCombineChannels + threadIdx.x;
  if (threadIdx.y != 0 || c >= shape.channels) return;
  const double count = static_cast<double>(shape.positions);
  const double mean = count > 0 ? sum / count : 0;
  const double off = squares - sum * mean;
  const double deviations = off < 0 ? 0 : off;  // what is no number stays none
  if (ranks == Ranks::kOwn) {
    finish(norm, c, norm.running_mean[c] + mean, count > 0 ? deviations / count : 0, count);
  } else {
    norm.mean[c] = static_cast<float>(norm.running_mean[c] + mean);
    norm.inverse_deviation[c] = static_cast<float>(deviations);
  }
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
  if (count == 0) return;  // nothing moves
  finish(norm, c, static_cast<double>(sums[c]) / count, static_cast<double>(deviations[c]) / count, count);
}

__global__ void use_running_kernel(std::size_t channels, NormPlace norm) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  const double factor = norm.scale[c] / sqrt(static_cast<double>(norm.running_variance[c]) + kNormEpsilon);
  norm.factor[c] = static_cast<float>(factor);
  norm.offset[c] = static_cast<float>(norm.shift[c] - norm.running_mean[c] * factor);
}

enum class Shortcut { kNone, kIdentity, kNormalised };

template <typename T, Shortcut kShortcut>
__global__ void apply_kernel(NormShape shape, const T* x, NormPlace norm, const T* shortcut, NormPlace shortcut_norm,
                             T* y) {
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
  for_own_positions(shape.positions, [&](std::size_t p) {
    const std::size_t place = p * shape.channels + channel;
    Vector value = load(x + place);
    Vector added{};
    if constexpr (kShortcut != Shortcut::kNone) added = load(shortcut + place);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float sum = fmaf(factor.v[i], value.v[i], offset.v[i]);
      if constexpr (kShortcut == Shortcut::kIdentity) sum += added.v[i];
      if constexpr (kShortcut == Shortcut::kNormalised) sum = fmaf(shortcut_factor.v[i], added.v[i], sum);
      value.v[i] = sum < 0.0F ? 0.0F : sum;  // what is no number stays none
    }
    store(y + place, value);
  });
}

/// Where the gradient that arrives at a normalisation's output comes from.
enum class Arrival {
  kRelu,   // g1, through the ReLU of the normalised values
  kBlock,  // g1 + g2, through the ReLU of the block's output; written to dz
  kPassed  // g1, as it is
};

template <typename T, Arrival kArrival>
__global__ void backward_partials(NormShape shape, const T* g1, const T* g2, const T* y, const T* x, NormPlace norm,
                                  T* dz, float* partials) {
  const std::size_t channel = own_channel();
  Two sums{};
  if (channel < shape.channels) {
    const Vector mean = load(norm.mean + channel);
    const Vector inverse = load(norm.inverse_deviation + channel);
    Vector factor{};
    Vector offset{};
    if constexpr (kArrival == Arrival::kRelu) {
      factor = load(norm.factor + channel);
      offset = load(norm.offset + channel);
    }
    for_own_positions(shape.positions, [&](std::size_t p) {
      const std::size_t place = p * shape.channels + channel;
      Vector gradient = load(g1 + place);
      const Vector value = load(x + place);
      if constexpr (kArrival == Arrival::kBlock) {
        const Vector output = load(y + place);
        Vector more{};
        if (g2 != nullptr) more = load(g2 + place);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gradient.v[i] = output.v[i] <= 0 ? 0.0F : gradient.v[i] + more.v[i];
        store(dz + place, gradient);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if constexpr (kArrival == Arrival::kRelu) {
          if (fmaf(factor.v[i], value.v[i], offset.v[i]) <= 0) gradient.v[i] = 0;
        }
        sums.first.v[i] += gradient.v[i];
        sums.second.v[i] += gradient.v[i] * (value.v[i] - mean.v[i]) * inverse.v[i];
      }
    });
  }
  write_partials(sums, shape.channels, partials);
}

__global__ void backward_combine(std::size_t channels, const float* partials, unsigned groups, float* sums) {
  double first = 0;
  double second = 0;
  combine(partials, groups, channels, first, second);
  const std::size_t c = blockIdx.x * kCombineChannels + threadIdx.x;
  if (threadIdx.y != 0 || c >= channels) return;
  sums[c] = static_cast<float>(first);
  sums[channels + c] = static_cast<float>(second);
}

/// dx = gamma / deviation (dz - mean(dz) - x^ mean(dz x^)), with x^ = (x - mean) / deviation, as a line in dz and x.
__device__ void make_line(const NormPlace& norm, std::size_t c, std::size_t channels, float mean_dz, float mean_dz_x) {
  const float slope = norm.scale[c] * norm.inverse_deviation[c];
  const float of_x = -slope * norm.inverse_deviation[c] * mean_dz_x;
  norm.backward[c] = slope;
  norm.backward[channels + c] = of_x;
  norm.backward[2 * channels + c] = -slope * mean_dz - of_x * norm.mean[c];
}

__global__ void backward_own_kernel(NormShape shape, NormPlace norm, float* sums, Ranks ranks) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  const std::size_t channels = shape.channels;
  const float count = static_cast<float>(shape.positions);
  if (ranks == Ranks::kAll && c == channels) sums[2 * channels] = count;
  if (c >= channels) return;
  norm.shift_gradient[c] = sums[c];
  norm.scale_gradient[c] = sums[channels + c];
  if (ranks == Ranks::kOwn) return make_line(norm, c, channels, sums[c] / count, sums[channels + c] / count);
  // A rank's loss is the mean over its own rows: by the number of those, the sums are of one loss.
  sums[c] *= count;
  sums[channels + c] *= count;
}

__global__ void backward_finish_kernel(NormShape shape, NormPlace norm, const float* sums) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  const std::size_t channels = shape.channels;
  if (c >= channels) return;
  // Back to the scale of this rank's own loss, and the mean over the positions of all ranks.
  const float scale = 1.0F / (static_cast<float>(shape.positions) * sums[2 * channels]);
  make_line(norm, c, channels, sums[c] * scale, sums[channels + c] * scale);
}

template <typename T, bool kThroughRelu>
__global__ void backward_apply_kernel(NormShape shape, const T* dz, const T* x, NormPlace norm, T* dx) {
  const std::size_t channel = own_channel();
  if (channel >= shape.channels) return;
  const Vector slope = load(norm.backward + channel);
  const Vector of_x = load(norm.backward + shape.channels + channel);
  const Vector constant = load(norm.backward + 2 * shape.channels + channel);
  Vector factor{};
  Vector offset{};
  if constexpr (kThroughRelu) {
    factor = load(norm.factor + channel);
    offset = load(norm.offset + channel);
  }
  for_own_positions(shape.positions, [&](std::size_t p) {
    const std::size_t place = p * shape.channels + channel;
    Vector gradient = load(dz + place);
    const Vector value = load(x + place);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kThroughRelu) {
        if (fmaf(factor.v[i], value.v[i], offset.v[i]) <= 0) gradient.v[i] = 0;
      }
      gradient.v[i] = fmaf(slope.v[i], gradient.v[i], fmaf(of_x.v[i], value.v[i], constant.v[i]));
    }
    store(dx + place, gradient);
  });
}

dim3 combine_grid(std::size_t channels) {
  return static_cast<unsigned>((channels + kCombineChannels - 1) / kCombineChannels);
}
constexpr dim3 kCombineBlock{kCombineChannels, kCombineRows};

unsigned channel_blocks(std::size_t channels) { return static_cast<unsigned>((channels + kThreads) / kThreads); }

template <Shortcut kShortcut>
void apply(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
           const NormPlace& shortcut_norm, void* y, CUstream_st* stream) {
  if (shape.positions == 0) return;
  const Layout layout(shape.positions, shape.channels, 4 * kMostBlocks);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("normalising", apply_kernel<T, kShortcut>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(x), norm, static_cast<const T*>(shortcut), shortcut_norm, static_cast<T*>(y));
  });
}

template <Arrival kArrival>
void sum_backward(CudaMath math, NormShape shape, const void* g1, const void* g2, const void* y, const void* x,
                  const NormPlace& norm, void* dz, const SumPlace& place, CUstream_st* stream) {
  const Layout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("sums of a normalisation's gradient", backward_partials<T, kArrival>, layout.grid(), layout.block(), stream,
           shape, static_cast<const T*>(g1), static_cast<const T*>(g2), static_cast<const T*>(y),
           static_cast<const T*>(x), norm, static_cast<T*>(dz), place.partials);
  });
  launch("sums of a normalisation's gradient", backward_combine, combine_grid(shape.channels), kCombineBlock, stream,
         shape.channels, place.partials, layout.row_groups, place.sums);
}

template <bool kThroughRelu>
void apply_backward(CudaMath math, NormShape shape, const void* dz, const void* x, const NormPlace& norm, void* dx,
                    CUstream_st* stream) {
  if (shape.positions == 0) return;
  const Layout layout(shape.positions, shape.channels, 4 * kMostBlocks);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("a normalisation's gradient", backward_apply_kernel<T, kThroughRelu>, layout.grid(), layout.block(), stream,
           shape, static_cast<const T*>(dz), static_cast<const T*>(x), norm, static_cast<T*>(dx));
  });
}

}  // namespace

void statistics(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const SumPlace& place,
                Ranks ranks, CUstream_st* stream) {
  const Layout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("statistics of a batch", statistics_partials<T>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(x), norm, place.partials);
  });
  launch("statistics of a batch", statistics_combine, combine_grid(shape.channels), kCombineBlock, stream, shape,
         place.partials, layout.row_groups, norm, ranks);
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
  apply<Shortcut::kNone>(math, shape, x, norm, nullptr, norm, y, stream);
}
void apply_add_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut, void* y,
                    CUstream_st* stream) {
  apply<Shortcut::kIdentity>(math, shape, x, norm, shortcut, norm, y, stream);
}
void apply_two_relu(CudaMath math, NormShape shape, const void* x, const NormPlace& norm, const void* shortcut,
                    const NormPlace& shortcut_norm, void* y, CUstream_st* stream) {
  apply<Shortcut::kNormalised>(math, shape, x, norm, shortcut, shortcut_norm, y, stream);
}

void backward_sums_relu(CudaMath math, NormShape shape, const void* dy, const void* x, const NormPlace& norm,
                        const SumPlace& place, CUstream_st* stream) {
  sum_backward<Arrival::kRelu>(math, shape, dy, nullptr, nullptr, x, norm, nullptr, place, stream);
}
void backward_sums_block(CudaMath math, NormShape shape, const void* g1, const void* g2, const void* y, const void* x,
                         const NormPlace& norm, void* dz, const SumPlace& place, CUstream_st* stream) {
  sum_backward<Arrival::kBlock>(math, shape, g1, g2, y, x, norm, dz, place, stream);
}
void backward_sums(CudaMath math, NormShape shape, const void* dz, const void* x, const NormPlace& norm,
                   const SumPlace& place, CUstream_st* stream) {
  sum_backward<Arrival::kPassed>(math, shape, dz, nullptr, nullptr, x, norm, nullptr, place, stream);
}

void backward_own(NormShape shape, const NormPlace& norm, float* sums, Ranks ranks, CUstream_st* stream) {
  launch("a normalisation's gradient", backward_own_kernel, channel_blocks(shape.channels), kThreads, stream, shape,
         norm, sums, ranks);
}
void backward_finish(NormShape shape, const NormPlace& norm, const float* sums, CUstream_st* stream) {
  launch("a normalisation's gradient", backward_finish_kernel, channel_blocks(shape.channels), kThreads, stream, shape,
         norm, sums);
}

void backward_apply_relu(CudaMath math, NormShape shape, const void* dy, const void* x, const NormPlace& norm, void* dx,
                         CUstream_st* stream) {
  apply_backward<true>(math, shape, dy, x, norm, dx, stream);
}
void backward_apply(CudaMath math, NormShape shape, const void* dz, const void* x, const NormPlace& norm, void* dx,
                    CUstream_st* stream) {
  apply_backward<false>(math, shape, dz, x, norm, dx, stream);
}

}  // namespace resnet::cuda
