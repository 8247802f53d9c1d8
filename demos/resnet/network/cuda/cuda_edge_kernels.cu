#include "demos/resnet/network/cuda/cuda_edge_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_elements.cuh"

namespace resnet::cuda {
namespace {

/// One block converts one chunk.
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

/// One block computes one row.
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
  float first_largest = static_cast<float>(classes);  // exact, because the number of classes is far below 2^24
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

void to_bfloat16(const Chunk* chunks, std::size_t chunk_count, const float* values, void* narrow, CUstream_st* stream) {
  launch("to bfloat16", convert_kernel<true>, static_cast<unsigned>(chunk_count), kThreads, stream, chunks,
         const_cast<float*>(values), static_cast<__nv_bfloat16*>(narrow));
}

void from_bfloat16(const Chunk* chunks, std::size_t chunk_count, const void* narrow, float* values,
                   CUstream_st* stream) {
  launch("from bfloat16", convert_kernel<false>, static_cast<unsigned>(chunk_count), kThreads, stream, chunks, values,
         static_cast<__nv_bfloat16*>(const_cast<void*>(narrow)));
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
