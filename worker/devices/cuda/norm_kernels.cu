#include <cstdint>

#include "syncrun/detail/step_plan.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/norm_kernels.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 512;
constexpr int kUnrolled = 4;  // elements that a thread has in flight

/// The sums of the blocks. All uses are on one stream, one after the other.
__device__ double block_sums[kBlocks];

/// Adds up one number of each thread of the block. The result is valid in thread 0.
__device__ double sum_of_block(double own) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads) square_kernel(const T* values, std::int64_t elements, const double* plan,
                                                          std::int64_t numbers, std::int64_t first) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  double sums[kUnrolled] = {};
  for (std::int64_t i = StepPlan::kHead; i + static_cast<std::int64_t>(StepPlan::kPart) <= numbers;
       i += StepPlan::kPart) {
    std::int64_t begin = static_cast<std::int64_t>(plan[i]) - first;
    std::int64_t end = static_cast<std::int64_t>(plan[i + 1]) - first;
    if (begin < 0) begin = 0;
    if (end > elements) end = elements;
    if (plan[i + 2] == 0) continue;  // frozen
    for (std::int64_t at = begin + thread; at < end; at += threads * kUnrolled) {
#pragma unroll
      for (int k = 0; k < kUnrolled; ++k) {
        const std::int64_t place = at + k * threads;
        if (place < end) {
          const double value = static_cast<double>(values[place]);
          sums[k] += value * value;
        }
      }
    }
  }
  const double sum = sum_of_block((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) block_sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_kernel(double* squares) {
  double own = 0;
  for (int i = threadIdx.x; i < kBlocks; i += kThreads) own += block_sums[i];
  const double sum = sum_of_block(own);
  if (threadIdx.x == 0) *squares = sum;
}

__global__ void root_kernel(double* number, const double* divisor) { *number = sqrt(*number) / *divisor; }

template <class T>
void square(const UpdateWork& work, cudaStream_t stream) {
  square_kernel<T><<<kBlocks, kThreads, 0, stream>>>(static_cast<const T*>(work.gradient),
                                                     static_cast<std::int64_t>(work.elements), work.plan.data(),
                                                     static_cast<std::int64_t>(work.plan.size()), work.first);
}

}  // namespace

void sum_squares(const UpdateWork& work, double* squares, cudaStream_t stream) {
  if (work.dtype == DType::float64) square<double>(work, stream);
  else square<float>(work, stream);
  add_kernel<<<1, kThreads, 0, stream>>>(squares);
  check_cuda(cudaGetLastError(), "the norm of a gradient");
}

void take_root(double* number, const double* divisor, cudaStream_t stream) {
  root_kernel<<<1, 1, 0, stream>>>(number, divisor);
  check_cuda(cudaGetLastError(), "the norm of a gradient");
}

void load_norm_kernels() {
  const auto of = [](auto* kernel) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels of a norm");
  };
  of(&square_kernel<float>);
  of(&square_kernel<double>);
  of(&add_kernel);
  of(&root_kernel);
}

}  // namespace syncrun::detail::worker::devices::cuda::kernels
