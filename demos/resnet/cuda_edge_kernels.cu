#include "demos/resnet/cuda_edge_kernels.hpp"
#include "demos/resnet/cuda_elements.cuh"

namespace resnet::cuda {
namespace {

__device__ std::size_t own_item() { return blockIdx.x * std::size_t{kThreads} + threadIdx.x; }

template <typename... P, typename... A>
void launch_items(const char* what, void (*kernel)(P...), std::size_t items, cudaStream_t stream, A... arguments) {
  if (items == 0) return;
  launch(what, kernel, static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, stream, arguments...);
}

/// A thread per pixel of the result; some blocks per row, which draw its place once each.
template <typename T>
__global__ void prepare_kernel(unsigned blocks_per_row, const std::uint8_t* images, ImageShape shape,
                               Preparation preparation, const std::int64_t* row_ids, const AugmentKey* key, T* y) {
  __shared__ Placement at;
  const std::size_t row = blockIdx.x / blocks_per_row;
  if (threadIdx.x == 0) at = placement(shape, preparation, *key, row_ids == nullptr ? 0 : row_ids[row]);
  __syncthreads();
  const auto crop = static_cast<unsigned>(preparation.crop);
  const unsigned pixel_of_row = blockIdx.x % blocks_per_row * kThreads + threadIdx.x;
  if (pixel_of_row >= crop * crop) return;
  const unsigned column = pixel_of_row % crop;
  const unsigned line = pixel_of_row / crop;
  const std::size_t item = row * crop * crop + pixel_of_row;
  const std::size_t from = at.left + (at.is_mirrored ? crop - 1 - column : column);
  const std::uint8_t* pixel =
      images + row * shape.height * shape.width * 3 + ((at.top + line) * shape.width + from) * 3;
  Vector x{};
#pragma unroll
  for (int c = 0; c < 3; ++c) x.v[c] = prepared_pixel(preparation, pixel[c], static_cast<std::size_t>(c));
  store(y + item * kImageChannels, x);
}

template <typename T>
__global__ void widen_kernel(std::size_t pixels, const float* images, T* y) {
  const std::size_t item = own_item();
  if (item >= pixels) return;
  Vector x{};
#pragma unroll
  for (int c = 0; c < 3; ++c) x.v[c] = images[item * 3 + c];
  store(y + item * kImageChannels, x);
}

template <typename T>
__global__ void narrow_kernel(std::size_t count, const T* wide, float* gradient) {
  const std::size_t item = own_item();
  if (item >= count) return;
  const Vector x = load(wide + item * kImageChannels);
#pragma unroll
  for (int c = 0; c < 3; ++c) gradient[item * 3 + c] = x.v[c];
}

/// A block per chunk.
template <bool kToBfloat16>
__global__ void convert_kernel(const Chunk* chunks, float* values, __nv_bfloat16* narrow) {
  const Chunk chunk = chunks[blockIdx.x];
  for (std::size_t i = threadIdx.x * kVector; i < chunk.count; i += kThreads * kVector) {
    const std::size_t place = chunk.first + i;
    if constexpr (kToBfloat16) {
      store(narrow + place, load(values + place));
    } else {
      store(values + place, load(narrow + place));
    }
  }
}

constexpr int kWindow = 3;

/// A thread per vector of the result.
template <typename T>
__global__ void pool_forward_kernel(PoolShape shape, std::size_t items, const T* x, const float* factor,
                                    const float* offset, T* y, std::uint8_t* which) {
  const std::size_t item = own_item();
  if (item >= items) return;
  const std::size_t vectors = shape.channels / kVector;
  const std::size_t channel = item % vectors * kVector;
  const std::size_t out = shape.size_out();
  const int column = static_cast<int>(item / vectors % out);
  const int line = static_cast<int>(item / vectors / out % out);
  const std::size_t row = item / vectors / out / out;
  const Vector slope = load(factor + channel);
  const Vector constant = load(offset + channel);
  Vector best;
  alignas(kVector) std::uint8_t number[kVector] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) best.v[i] = -1.0F;  // below every rectified value
#pragma unroll
  for (int j = 0; j < kWindow * kWindow; ++j) {
    const int h = 2 * line - 1 + j / kWindow;
    const int w = 2 * column - 1 + j % kWindow;
    const int size = static_cast<int>(shape.size);
    if (h < 0 || w < 0 || h >= size || w >= size) continue;
    const Vector value = load(x + ((row * shape.size + h) * shape.size + w) * shape.channels + channel);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float sum = fmaf(slope.v[i], value.v[i], constant.v[i]);
      const float rectified = sum < 0.0F ? 0.0F : sum;
      if (rectified > best.v[i] || isnan(rectified)) {  // what is no number is taken, and stays
        best.v[i] = rectified;
        number[i] = static_cast<std::uint8_t>(j);
      }
    }
  }
  store(y + item * kVector, best);
  *reinterpret_cast<uint2*>(which + item * kVector) = *reinterpret_cast<const uint2*>(number);
}

/// A thread per vector of dx: it looks at the windows that hold it, four at most.
template <typename T>
__global__ void pool_backward_kernel(PoolShape shape, std::size_t items, const T* g1, const T* g2,
                                     const std::uint8_t* which, T* dx) {
  const std::size_t item = own_item();
  if (item >= items) return;
  const std::size_t vectors = shape.channels / kVector;
  const std::size_t channel = item % vectors * kVector;
  const int column = static_cast<int>(item / vectors % shape.size);
  const int line = static_cast<int>(item / vectors / shape.size % shape.size);
  const std::size_t row = item / vectors / shape.size / shape.size;
  const int out = static_cast<int>(shape.size_out());
  Vector sum{};
  for (int v = line / 2; v <= (line + 1) / 2 && v < out; ++v) {
    for (int u = column / 2; u <= (column + 1) / 2 && u < out; ++u) {
      const int number = (line - 2 * v + 1) * kWindow + (column - 2 * u + 1);
      const std::size_t place = ((row * out + v) * out + u) * shape.channels + channel;
      alignas(kVector) std::uint8_t chosen[kVector];
      *reinterpret_cast<uint2*>(chosen) = *reinterpret_cast<const uint2*>(which + place);
      Vector gradient = load(g1 + place);
      Vector more{};
      if (g2 != nullptr) more = load(g2 + place);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (chosen[i] == number) sum.v[i] += gradient.v[i] + more.v[i];
      }
    }
  }
  store(dx + item * kVector, sum);
}

template <typename T>
__global__ void mean_forward_kernel(std::size_t items, std::size_t positions, std::size_t channels, const T* x, T* y) {
  const std::size_t item = own_item();
  if (item >= items) return;
  const std::size_t vectors = channels / kVector;
  const T* place = x + item / vectors * positions * channels + item % vectors * kVector;
  Vector sum{};
#pragma unroll 7
  for (std::size_t p = 0; p < positions; ++p) {
    const Vector value = load(place + p * channels);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] += value.v[i];
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.v[i] /= static_cast<float>(positions);
  store(y + item * kVector, sum);
}

template <typename T>
__global__ void mean_backward_kernel(std::size_t items, std::size_t positions, std::size_t channels, const T* dy,
                                     T* dx) {
  const std::size_t item = own_item();
  if (item >= items) return;
  const std::size_t vectors = channels / kVector;
  const std::size_t row = item / vectors / positions;
  Vector gradient = load(dy + row * channels + item % vectors * kVector);
#pragma unroll
  for (int i = 0; i < kVector; ++i) gradient.v[i] /= static_cast<float>(positions);
  store(dx + item * kVector, gradient);
}

template <class Combine>
__device__ float over_block(float value, float* memory, Combine combine) {
  memory[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) memory[threadIdx.x] = combine(memory[threadIdx.x], memory[threadIdx.x + width]);
    __syncthreads();
  }
  const float result = memory[0];
  __syncthreads();
  return result;
}

/// A block per row.
template <typename T>
__global__ void loss_kernel(std::size_t rows, std::size_t classes, float* logits, const float* bias,
                            const std::int64_t* labels, LossOptions options, T* dlogits, LossPlace place) {
  __shared__ float memory[kThreads];
  const std::size_t row = blockIdx.x;
  float* const z = logits + row * classes;
  float largest = -INFINITY;
  float sum = 0;
  for (std::size_t c = threadIdx.x; c < classes; c += kThreads) {
    z[c] += bias[c];
    largest = fmaxf(largest, z[c]);
    sum += z[c];
  }
  const auto plus = [](float a, float b) { return a + b; };
  largest = over_block(largest, memory, [](float a, float b) { return fmaxf(a, b); });
  sum = over_block(sum, memory, plus);
  float exponentials = 0;
  float first_largest = static_cast<float>(classes);  // classes are far below 2^24
  for (std::size_t c = threadIdx.x; c < classes; c += kThreads) {
    exponentials += expf(z[c] - largest);
    if (z[c] == largest) first_largest = fminf(first_largest, static_cast<float>(c));
  }
  exponentials = over_block(exponentials, memory, plus);
  first_largest = over_block(first_largest, memory, [](float a, float b) { return fminf(a, b); });
  const std::int64_t label = labels[row];
  const bool is_label = label >= 0 && label < static_cast<std::int64_t>(classes);
  const float smoothing = static_cast<float>(options.label_smoothing);
  if (threadIdx.x == 0) {
    const double log_sum = static_cast<double>(largest) + log(static_cast<double>(exponentials));
    const double of_label = is_label ? static_cast<double>(z[label]) : NAN;
    const double mean = static_cast<double>(sum) / static_cast<double>(classes);
    place.row_losses[row] = log_sum - (1.0 - smoothing) * of_label - smoothing * mean;
    place.row_correct[row] = first_largest == static_cast<float>(label) ? 1 : 0;
  }
  if (dlogits == nullptr) return;
  const float everywhere = smoothing / static_cast<float>(classes);
  for (std::size_t c = threadIdx.x; c < classes; c += kThreads) {
    const float target = everywhere + (static_cast<std::int64_t>(c) == label ? 1.0F - smoothing : 0.0F);
    const float gradient = (expf(z[c] - largest) / exponentials - target) / static_cast<float>(rows);
    dlogits[row * classes + c] = static_cast<T>(gradient);
  }
}

__global__ void loss_sum_kernel(std::size_t rows, LossPlace place) {
  __shared__ double losses[kThreads];
  __shared__ std::int64_t counts[kThreads];
  double loss = 0;
  std::int64_t correct = 0;
  for (std::size_t row = threadIdx.x; row < rows; row += kThreads) {
    loss += place.row_losses[row];
    correct += place.row_correct[row];
  }
  losses[threadIdx.x] = loss;
  counts[threadIdx.x] = correct;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) {
    loss += losses[i];
    correct += counts[i];
  }
  *place.mean_loss = rows == 0 ? 0.0 : loss / static_cast<double>(rows);
  *place.correct = correct;
}

template <typename T>
__global__ void bias_backward_kernel(std::size_t rows, std::size_t classes, const T* dlogits, float* dbias) {
  const std::size_t c = own_item();
  if (c >= classes) return;
  float sum = 0;
#pragma unroll 8
  for (std::size_t row = 0; row < rows; ++row) sum += static_cast<float>(dlogits[row * classes + c]);
  dbias[c] = sum;
}

}  // namespace

void prepare(CudaMath math, std::size_t rows, const std::uint8_t* images, const ImageShape& shape,
             const Preparation& preparation, const std::int64_t* row_ids, const AugmentKey* key, void* y,
             CUstream_st* stream) {
  if (rows == 0) return;
  const std::size_t pixels = preparation.crop * preparation.crop;  // of a row
  const auto blocks_per_row = static_cast<unsigned>((pixels + kThreads - 1) / kThreads);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("preparing images", prepare_kernel<T>, static_cast<unsigned>(rows * blocks_per_row), kThreads, stream,
           blocks_per_row, images, shape, preparation, row_ids, key, static_cast<T*>(y));
  });
}

void widen(CudaMath math, std::size_t rows, std::size_t size, const float* images, void* y, CUstream_st* stream) {
  const std::size_t pixels = rows * size * size;
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("widening images", widen_kernel<T>, pixels, stream, pixels, images, static_cast<T*>(y));
  });
}

void widen_filter(CudaMath math, std::size_t count, const float* filter, void* wide, CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("widening filters", widen_kernel<T>, count, stream, count, filter, static_cast<T*>(wide));
  });
}

void narrow_filter_gradient(CudaMath math, std::size_t count, const void* wide, float* gradient, CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("narrowing filters", narrow_kernel<T>, count, stream, count, static_cast<const T*>(wide), gradient);
  });
}

void to_bfloat16(const Chunk* chunks, std::size_t chunk_count, const float* values, void* narrow, CUstream_st* stream) {
  launch("to bfloat16", convert_kernel<true>, static_cast<unsigned>(chunk_count), kThreads, stream, chunks,
         const_cast<float*>(values), static_cast<__nv_bfloat16*>(narrow));
}

void from_bfloat16(const Chunk* chunks, std::size_t chunk_count, const void* narrow, float* values,
                   CUstream_st* stream) {
  launch("from bfloat16", convert_kernel<false>, static_cast<unsigned>(chunk_count), kThreads, stream, chunks, values,
         static_cast<__nv_bfloat16*>(const_cast<void*>(narrow)));
}

void pool_forward(CudaMath math, const PoolShape& shape, const void* x, const float* factor, const float* offset,
                  void* y, std::uint8_t* which, CUstream_st* stream) {
  const std::size_t items = shape.rows * shape.size_out() * shape.size_out() * shape.channels / kVector;
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("max-pool", pool_forward_kernel<T>, items, stream, shape, items, static_cast<const T*>(x), factor,
                 offset, static_cast<T*>(y), which);
  });
}

void pool_backward(CudaMath math, const PoolShape& shape, const void* g1, const void* g2, const std::uint8_t* which,
                   void* dx, CUstream_st* stream) {
  const std::size_t items = shape.rows * shape.size * shape.size * shape.channels / kVector;
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("max-pool's gradient", pool_backward_kernel<T>, items, stream, shape, items, static_cast<const T*>(g1),
                 static_cast<const T*>(g2), which, static_cast<T*>(dx));
  });
}

void mean_forward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* x, void* y,
                  CUstream_st* stream) {
  const std::size_t items = rows * channels / kVector;
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("mean over pixels", mean_forward_kernel<T>, items, stream, items, positions, channels,
                 static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void mean_backward(CudaMath math, std::size_t rows, std::size_t positions, std::size_t channels, const void* dy,
                   void* dx, CUstream_st* stream) {
  const std::size_t items = rows * positions * channels / kVector;
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("mean over pixels, its gradient", mean_backward_kernel<T>, items, stream, items, positions, channels,
                 static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

void loss(CudaMath math, std::size_t rows, std::size_t classes, float* logits, const float* bias,
          const std::int64_t* labels, const LossOptions& options, void* dlogits, const LossPlace& place,
          CUstream_st* stream) {
  if (rows > 0) {
    with_element(math, [&](auto* element) {
      using T = std::remove_pointer_t<decltype(element)>;
      launch("loss", loss_kernel<T>, static_cast<unsigned>(rows), kThreads, stream, rows, classes, logits, bias, labels,
             options, static_cast<T*>(dlogits), place);
    });
  }
  launch("loss", loss_sum_kernel, 1, kThreads, stream, rows, place);
}

void bias_backward(CudaMath math, std::size_t rows, std::size_t classes, const void* dlogits, float* dbias,
                   CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch_items("gradient of the biases", bias_backward_kernel<T>, classes, stream, rows, classes,
                 static_cast<const T*>(dlogits), dbias);
  });
}

}  // namespace resnet::cuda
