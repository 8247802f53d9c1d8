#include "demos/resnet/network/cuda/cuda_pool_kernels.hpp"

#include "demos/resnet/network/cuda/cuda_norm_sums.cuh"
#include "demos/resnet/network/cuda/cuda_pool_windows.cuh"
#include "demos/resnet/network/cuda/cuda_sums.cuh"

namespace resnet::cuda {
namespace {

constexpr unsigned kWindow = 3;

/// A pixel of y. It also stands for a quad of 2x2 pixels of x: the first pixel of the quad is the middle of the pixel's
/// window.
struct Pixel {
  unsigned row;
  unsigned line;
  unsigned column;
  __device__ Pixel(unsigned p, unsigned size) : row(p / size / size), line(p / size - row * size), column(p % size) {}
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    pool_forward_kernel(PoolShape shape, unsigned items, const T* x, NormPlace norm, T* y, std::uint8_t* which) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const auto vectors = static_cast<unsigned>(shape.channels) / kVector;
  const int size = static_cast<int>(shape.size);
  const unsigned channel = item % vectors * kVector;
  const Pixel at(item / vectors, static_cast<unsigned>(shape.size_out()));
  const Vector factor = load(norm.factor + channel);
  const Vector offset = load(norm.offset + channel);
  Vector best;
  alignas(kVector) std::uint8_t number[kVector] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) best.v[i] = -1.0F;  // below every rectified value
  const T* const image = x + std::size_t{at.row} * shape.size * shape.size * shape.channels + channel;
#pragma unroll
  for (unsigned j = 0; j < kWindow; ++j) {
    const int h = static_cast<int>(2 * at.line + j) - 1;
    Raw<T> raw[kWindow];
#pragma unroll
    for (unsigned k = 0; k < kWindow; ++k) {
      const int w = static_cast<int>(2 * at.column + k) - 1;
      // A place outside the image reads the middle of the window again. This changes nothing, because a later value
      // counts only if it is larger.
      const bool is_inside = h >= 0 && w >= 0 && h < size && w < size;
      const unsigned from =
          is_inside ? static_cast<unsigned>(h * size + w) : (2 * at.line) * shape.size + 2 * at.column;
      raw[k] = load_raw(image + std::size_t{from} * shape.channels);
    }
#pragma unroll
    for (unsigned k = 0; k < kWindow; ++k) {
      const int w = static_cast<int>(2 * at.column + k) - 1;
      if (h < 0 || w < 0 || h >= size || w >= size) continue;
      const Vector value = values_of(raw[k]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float sum = fmaf(factor.v[i], value.v[i], offset.v[i]);
        const float rectified = sum < 0.0F ? 0.0F : sum;
        if (rectified > best.v[i] || isnan(rectified)) {
          best.v[i] = rectified;
          number[i] = static_cast<std::uint8_t>(j * kWindow + k);
        }
      }
    }
  }
  store(y + std::size_t{item} * kVector, best);
  *reinterpret_cast<uint2*>(which + std::size_t{item} * kVector) = *reinterpret_cast<const uint2*>(number);
}

/// Goes through the pixels of y. The gradient of each goes to one place in x, so only the value of x at that place is
/// loaded.
template <typename T>
__global__ void __launch_bounds__(kSumThreads, 2)
    pool_sums_kernel(PoolShape shape, const T* g1, const T* g2, const std::uint8_t* which, const T* x, NormPlace norm,
                     float* sums_of_ranks, SumPlace place, Ranks ranks) {
  const std::size_t channel = own_channel();
  const auto out = static_cast<unsigned>(shape.size_out());
  Vector sums[2]{};
  if (channel < shape.channels) {
    const Vector mean = load(norm.mean + channel);
    const Vector factor = load(norm.factor + channel);
    const Vector offset = load(norm.offset + channel);
    const auto load_at = [&](unsigned p) { return PoolLoad<T>::at(g1, g2, which, p * shape.channels + channel); };
    const unsigned positions = static_cast<unsigned>(shape.rows) * out * out;
    for_own_positions<1, Direction::kUp>(positions, load_at, [&](unsigned p, const PoolLoad<T>& loaded) {
      const Pixel at(p, out);
      const Vector gradient = loaded.gradient();
      const T* const image = x + std::size_t{at.row} * shape.size * shape.size * shape.channels + channel;
      float value[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const unsigned number = loaded.number(i);
        const unsigned h = 2 * at.line + number / kWindow - 1;
        const unsigned w = 2 * at.column + number % kWindow - 1;
        value[i] = static_cast<float>(image[(h * shape.size + w) * shape.channels + static_cast<unsigned>(i)]);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float dz = fmaf(factor.v[i], value[i], offset.v[i]) <= 0 ? 0.0F : gradient.v[i];
        sums[0].v[i] += dz;
        sums[1].v[i] = fmaf(dz, value[i] - mean.v[i], sums[1].v[i]);
      }
    });
  }
  sum_over_blocks(sums, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[2]) {
    const NormShape norm_shape{shape.rows * shape.size * shape.size, shape.channels};
    finish_backward(norm, sums_of_ranks, c, norm_shape, total[0], total[1], ranks);
  });
}

constexpr int kHalf = kVector / 2;

/// Four channels, half a vector. The kernel below needs its registers for other values.
struct Half {
  float v[kHalf];
};
__device__ Half load_half(const float* place) {
  const float4 x = *reinterpret_cast<const float4*>(place);
  return {{x.x, x.y, x.z, x.w}};
}
__device__ Half load_half(const __nv_bfloat16* place) {
  const uint2 bits = *reinterpret_cast<const uint2*>(place);
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&bits);
  const float2 low = __bfloat1622float2(pairs[0]);
  const float2 high = __bfloat1622float2(pairs[1]);
  return {{low.x, low.y, high.x, high.y}};
}
__device__ void store_half(float* place, const Half& x) {
  *reinterpret_cast<float4*>(place) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
}
__device__ void store_half(__nv_bfloat16* place, const Half& x) {
  uint2 bits;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&bits);
  pairs[0] = __floats2bfloat162_rn(x.v[0], x.v[1]);
  pairs[1] = __floats2bfloat162_rn(x.v[2], x.v[3]);
  *reinterpret_cast<uint2*>(place) = bits;
}

/// The gradient of a pixel of y, for four channels.
struct Window {
  Half gradient{};
  unsigned which = ~0U;  // one byte per channel; 255, which is no pixel's number, if there is no window
};
template <typename T>
__device__ Window load_window(const T* g1, const T* g2, const std::uint8_t* which, std::size_t place) {
  Window window{load_half(g1 + place), *reinterpret_cast<const unsigned*>(which + place)};
  if (g2 == nullptr) return window;
  const Half more = load_half(g2 + place);
#pragma unroll
  for (int i = 0; i < kHalf; ++i) window.gradient.v[i] += more.v[i];
  return window;
}

/// A thread computes four channels of a quad of pixels of x: lines 2 i and 2 i + 1, and columns likewise. Four windows
/// contain pixels of the quad. The numbers of these pixels in their windows are the same for all quads.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    pool_apply_kernel(PoolShape shape, unsigned items, const T* g1, const T* g2, const std::uint8_t* which, const T* x,
                      NormPlace norm, T* dx) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const auto halves = static_cast<unsigned>(shape.channels) / kHalf;
  const auto out = static_cast<unsigned>(shape.size_out());
  const auto size = static_cast<unsigned>(shape.size);
  const unsigned channel = item % halves * kHalf;
  const Pixel quad(item / halves, out);
  Window windows[2][2];
#pragma unroll
  for (unsigned v = 0; v < 2; ++v) {
#pragma unroll
    for (unsigned u = 0; u < 2; ++u) {
      if (quad.line + v >= out || quad.column + u >= out) continue;
      const std::size_t window = (std::size_t{quad.row} * out + quad.line + v) * out + quad.column + u;
      windows[v][u] = load_window(g1, g2, which, window * shape.channels + channel);
    }
  }
  // Read all values of x before anything is written.
  Half values[2][2];
  const auto place_of = [&](unsigned h, unsigned w) {
    const std::size_t pixel = (std::size_t{quad.row} * size + 2 * quad.line + h) * size + 2 * quad.column + w;
    return pixel * shape.channels + channel;
  };
  const auto is_inside = [&](unsigned h, unsigned w) { return 2 * quad.line + h < size && 2 * quad.column + w < size; };
#pragma unroll
  for (unsigned h = 0; h < 2; ++h) {
#pragma unroll
    for (unsigned w = 0; w < 2; ++w) {
      if (is_inside(h, w)) values[h][w] = load_half(x + place_of(h, w));
    }
  }
  const Half factor = load_half(norm.factor + channel);
  const Half offset = load_half(norm.offset + channel);
  const Half slope = load_half(norm.backward + channel);
  const Half of_x = load_half(norm.backward + shape.channels + channel);
  const Half constant = load_half(norm.backward + 2 * shape.channels + channel);
#pragma unroll
  for (unsigned h = 0; h < 2; ++h) {
#pragma unroll
    for (unsigned w = 0; w < 2; ++w) {
      if (!is_inside(h, w)) continue;
      Half& value = values[h][w];
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        float dz = 0;
#pragma unroll
        for (unsigned v = 0; v <= h; ++v) {
#pragma unroll
          for (unsigned u = 0; u <= w; ++u) {
            const unsigned number = (h + 1 - 2 * v) * kWindow + w + 1 - 2 * u;
            if ((windows[v][u].which >> (8 * i) & 0xFFU) == number) dz += windows[v][u].gradient.v[i];
          }
        }
        if (fmaf(factor.v[i], value.v[i], offset.v[i]) <= 0) dz = 0;
        value.v[i] = fmaf(slope.v[i], dz, fmaf(of_x.v[i], value.v[i], constant.v[i]));
      }
      store_half(dx + place_of(h, w), value);
    }
  }
}

/// The number of vectors of y.
unsigned items_of(const PoolShape& shape) {
  return static_cast<unsigned>(shape.rows * shape.size_out() * shape.size_out() * shape.channels / kVector);
}

}  // namespace

void pool_forward(CudaMath math, const PoolShape& shape, const void* x, const NormPlace& norm, void* y,
                  std::uint8_t* which, CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("max-pool", pool_forward_kernel<T>, items_of(shape), stream, shape, items_of(shape),
                 static_cast<const T*>(x), norm, static_cast<T*>(y), which);
  });
}

void pool_backward_sums(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  const SumLayout layout(shape.rows * shape.size_out() * shape.size_out(), shape.channels);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("sums of the max-pool's gradient", pool_sums_kernel<T>, layout.grid(), layout.block(), stream, shape,
           static_cast<const T*>(gradient.g1), static_cast<const T*>(gradient.g2), gradient.which,
           static_cast<const T*>(side.x), side.norm, side.sums, place, ranks);
  });
}

void pool_backward_apply(CudaMath math, const PoolShape& shape, const PoolGradient& gradient, const NormSide& side,
                         CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const unsigned items = items_of(shape) * (kVector / kHalf);
    launch_items("the max-pool's gradient", pool_apply_kernel<T>, items, stream, shape, items,
                 static_cast<const T*>(gradient.g1), static_cast<const T*>(gradient.g2), gradient.which,
                 static_cast<const T*>(side.x), side.norm, static_cast<T*>(side.dx));
  });
}

}  // namespace resnet::cuda
