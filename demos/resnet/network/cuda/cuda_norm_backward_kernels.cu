// The backward pass of batch normalisation.

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_norm_sums.cuh"
#include "demos/resnet/network/cuda/cuda_sums.cuh"

namespace resnet::cuda {
namespace {

template <typename T>
struct ReluLoad {
  Raw<T> gradient;
  Raw<T> x;
};

template <typename T>
__global__ void __launch_bounds__(kSumThreads, 2)
    sums_relu_kernel(NormShape shape, const T* dy, const T* x, NormPlace norm, float* sums_of_ranks, SumPlace place,
                     Ranks ranks) {
  const std::size_t channel = own_channel();
  Vector sums[2]{};
  if (channel < shape.channels) {
    const Vector mean = load(norm.mean + channel);
    const Vector factor = load(norm.factor + channel);
    const Vector offset = load(norm.offset + channel);
    const auto load_at = [&](unsigned p) {
      const std::size_t at = p * shape.channels + channel;
      return ReluLoad<T>{load_raw(dy + at), load_raw(x + at)};
    };
    for_own_positions<kPositionsAtOnce<T>, Direction::kDown>(
        static_cast<unsigned>(shape.positions), load_at, [&](unsigned, const ReluLoad<T>& loaded) {
          const Vector gradient = values_of(loaded.gradient);
          const Vector value = values_of(loaded.x);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            const float dz = fmaf(factor.v[i], value.v[i], offset.v[i]) <= 0 ? 0.0F : gradient.v[i];
            sums[0].v[i] += dz;
            sums[1].v[i] = fmaf(dz, value.v[i] - mean.v[i], sums[1].v[i]);
          }
        });
  }
  sum_over_blocks(sums, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[2]) {
    finish_backward(norm, sums_of_ranks, c, shape, total[0], total[1], ranks);
  });
}

template <typename T, bool kHasShortcut>
struct BlockLoad {
  Raw<T> g1;
  Raw<T> g2;
  Raw<T> x;
  std::uint8_t passes;
};
template <typename T>
struct BlockLoad<T, true> : BlockLoad<T, false> {
  Raw<T> shortcut;
};

/// A NormSide with the element type of the kernel.
template <typename T>
struct Side {
  const T* x;
  NormPlace norm;
  T* dx;
  float* sums;

  static Side of(const NormSide& side) {
    return {static_cast<const T*>(side.x), side.norm, static_cast<T*>(side.dx), side.sums};
  }
};

template <typename T, bool kHasShortcut>
__global__ void __launch_bounds__(kSumThreads, 2)
    sums_block_kernel(NormShape shape, const T* g1, const T* g2, const std::uint8_t* passes, T* dz, Side<T> last,
                      Side<T> shortcut, SumPlace place, Ranks ranks) {
  constexpr int kSums = kHasShortcut ? 3 : 2;
  const std::size_t channel = own_channel();
  Vector sums[kSums]{};
  if (channel < shape.channels) {
    const Vector mean = load(last.norm.mean + channel);
    Vector shortcut_mean{};
    if constexpr (kHasShortcut) shortcut_mean = load(shortcut.norm.mean + channel);
    using Loaded = BlockLoad<T, kHasShortcut>;
    const auto load_at = [&](unsigned p) {
      const std::size_t at = p * shape.channels + channel;
      Loaded loaded;
      loaded.g1 = load_raw(g1 + at);
      loaded.g2 = g2 == nullptr ? Raw<T>{} : load_raw(g2 + at);
      loaded.x = load_raw(last.x + at);
      loaded.passes = passes[at / kVector];
      if constexpr (kHasShortcut) loaded.shortcut = load_raw(shortcut.x + at);
      return loaded;
    };
    for_own_positions<kHasShortcut ? 1 : kPositionsAtOnce<T>, Direction::kDown>(
        static_cast<unsigned>(shape.positions), load_at, [&](unsigned p, const Loaded& loaded) {
          Vector gradient = values_of(loaded.g1);
          const Vector more = values_of(loaded.g2);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            // The sums use the gradient before it is rounded for dz. That is as good as any gradient of this precision.
            gradient.v[i] = (loaded.passes >> i & 1) == 0 ? 0.0F : gradient.v[i] + more.v[i];
            sums[0].v[i] += gradient.v[i];
          }
          store(dz + p * shape.channels + channel, gradient);
          const Vector value = values_of(loaded.x);
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[1].v[i] = fmaf(gradient.v[i], value.v[i] - mean.v[i], sums[1].v[i]);
          if constexpr (kHasShortcut) {
            const Vector other = values_of(loaded.shortcut);
#pragma unroll
            for (int i = 0; i < kVector; ++i)
              sums[2].v[i] = fmaf(gradient.v[i], other.v[i] - shortcut_mean.v[i], sums[2].v[i]);
          }
        });
  }
  sum_over_blocks(sums, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[kSums]) {
    finish_backward(last.norm, last.sums, c, shape, total[0], total[1], ranks);
    if constexpr (kHasShortcut) finish_backward(shortcut.norm, shortcut.sums, c, shape, total[0], total[2], ranks);
  });
}

__global__ void finish_kernel(NormShape shape, NormPlace norm, const float* sums) {
  const std::size_t c = blockIdx.x * blockDim.x + threadIdx.x;
  const std::size_t channels = shape.channels;
  if (c >= channels) return;
  // Scale the sums to this rank's own loss, and make means over the positions of all ranks.
  const float scale = 1.0F / (static_cast<float>(shape.positions) * sums[2 * channels]);
  make_line(norm, c, channels, sums[c] * scale, sums[channels + c] * scale);
}

/// dx is linear in dy and x. These are the coefficients.
struct Line {
  Vector slope;
  Vector of_x;
  Vector constant;

  __device__ Line(const NormPlace& norm, std::size_t channels, std::size_t channel)
      : slope(load(norm.backward + channel)),
        of_x(load(norm.backward + channels + channel)),
        constant(load(norm.backward + 2 * channels + channel)) {}
  __device__ float at(int i, float dz, float x) const {
    return fmaf(slope.v[i], dz, fmaf(of_x.v[i], x, constant.v[i]));
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    apply_relu_kernel(NormShape shape, const T* dy, const T* x, NormPlace norm, T* dx) {
  const std::size_t channel = own_channel();
  if (channel >= shape.channels) return;
  const Line line(norm, shape.channels, channel);
  const Vector factor = load(norm.factor + channel);
  const Vector offset = load(norm.offset + channel);
  const auto load_at = [&](unsigned p) {
    const std::size_t at = p * shape.channels + channel;
    return ReluLoad<T>{load_raw(dy + at), load_raw(x + at)};
  };
  for_own_positions<kPositionsAtOnce<T>, Direction::kUp>(
      static_cast<unsigned>(shape.positions), load_at, [&](unsigned p, const ReluLoad<T>& loaded) {
        Vector gradient = values_of(loaded.gradient);
        const Vector value = values_of(loaded.x);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float dz = fmaf(factor.v[i], value.v[i], offset.v[i]) <= 0 ? 0.0F : gradient.v[i];
          gradient.v[i] = line.at(i, dz, value.v[i]);
        }
        store(dx + p * shape.channels + channel, gradient);
      });
}

template <typename T, bool kHasShortcut>
__global__ void __launch_bounds__(kThreads)
    apply_block_kernel(NormShape shape, const T* dz, Side<T> last, Side<T> shortcut) {
  const std::size_t channel = own_channel();
  if (channel >= shape.channels) return;
  const Line line(last.norm, shape.channels, channel);
  const Line shortcut_line(kHasShortcut ? shortcut.norm : last.norm, shape.channels, channel);
  using Loaded = BlockLoad<T, kHasShortcut>;
  const auto load_at = [&](unsigned p) {
    const std::size_t at = p * shape.channels + channel;
    Loaded loaded{};
    loaded.g1 = load_raw(dz + at);
    loaded.x = load_raw(last.x + at);
    if constexpr (kHasShortcut) loaded.shortcut = load_raw(shortcut.x + at);
    return loaded;
  };
  for_own_positions<kPositionsAtOnce<T>, Direction::kUp>(
      static_cast<unsigned>(shape.positions), load_at, [&](unsigned p, const Loaded& loaded) {
        const std::size_t at = p * shape.channels + channel;
        const Vector gradient = values_of(loaded.g1);
        Vector value = values_of(loaded.x);
#pragma unroll
        for (int i = 0; i < kVector; ++i) value.v[i] = line.at(i, gradient.v[i], value.v[i]);
        store(last.dx + at, value);
        if constexpr (kHasShortcut) {
          Vector other = values_of(loaded.shortcut);
#pragma unroll
          for (int i = 0; i < kVector; ++i) other.v[i] = shortcut_line.at(i, gradient.v[i], other.v[i]);
          store(shortcut.dx + at, other);
        }
      });
}

}  // namespace

void backward_sums_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, const SumPlace& place,
                        Ranks ranks, CUstream_st* stream) {
  const SumLayout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("sums of a normalisation's gradient", sums_relu_kernel<T>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(dy), static_cast<const T*>(side.x), side.norm, side.sums, place, ranks);
  });
}

void backward_sums_block(CudaMath math, NormShape shape, const void* g1, const void* g2, const std::uint8_t* passes,
                         void* dz, const NormSide& last, const NormSide* shortcut, const SumPlace& place, Ranks ranks,
                         CUstream_st* stream) {
  const SumLayout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto kernel = shortcut == nullptr ? sums_block_kernel<T, false> : sums_block_kernel<T, true>;
    launch("sums of a block's gradient", kernel, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(g1), static_cast<const T*>(g2), passes, static_cast<T*>(dz), Side<T>::of(last),
           Side<T>::of(shortcut == nullptr ? last : *shortcut), place, ranks);
  });
}

void backward_finish(NormShape shape, const NormPlace& norm, const float* sums, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>((shape.channels + kThreads - 1) / kThreads);
  launch("a normalisation's gradient", finish_kernel, blocks, kThreads, stream, shape, norm, sums);
}

void backward_apply_relu(CudaMath math, NormShape shape, const void* dy, const NormSide& side, CUstream_st* stream) {
  if (shape.positions == 0) return;
  const Layout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("a normalisation's gradient", apply_relu_kernel<T>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(dy), static_cast<const T*>(side.x), side.norm, static_cast<T*>(side.dx));
  });
}

void backward_apply_block(CudaMath math, NormShape shape, const void* dz, const NormSide& last,
                          const NormSide* shortcut, CUstream_st* stream) {
  if (shape.positions == 0) return;
  const Layout layout(shape.positions, shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto kernel = shortcut == nullptr ? apply_block_kernel<T, false> : apply_block_kernel<T, true>;
    launch("a block's gradient", kernel, layout.grid(), layout.block(), stream, shape, static_cast<const T*>(dz),
           Side<T>::of(last), Side<T>::of(shortcut == nullptr ? last : *shortcut));
  });
}

}  // namespace resnet::cuda
