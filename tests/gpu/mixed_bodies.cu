#include "tests/mixed/mixed_bodies.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

#include "tests/support/gpus.hpp"

namespace mixed_test {

namespace {

void check_launch() {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

constexpr unsigned kThreads = 128;
unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

// The kernels of one thread are as simple as possible.

template <class T>
__global__ void sum_of(const T* x, std::int64_t rows, T* numbers) {
  T sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) sum += x[row];
  numbers[0] = sum / static_cast<T>(rows);
  numbers[1] = sum;
}

__global__ void double_rows(const double* x, std::int64_t rows, double* to) {
  const std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows) to[i] = 2 * x[i];
}

__global__ void fill_arrays(const float* numbers, std::int64_t size, int rank, float* mean, std::int16_t* most) {
  const std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  mean[i] = numbers[0] + static_cast<float>(i % 5);
  most[i] = static_cast<std::int16_t>(rank);
}

__global__ void add_number(const float* numbers, const float* old, std::int64_t size, float* to) {
  const std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = old[i] + numbers[1];
}

/// In one block of threads. Spins before it reads anything.
__global__ void sum_late(const float* x, std::int64_t rows, const float* y, std::int64_t elements, const double* factor,
                         double* to) {
  constexpr long long kCycles = 5'000'000;  // some milliseconds
  const long long begin = clock64();
  while (clock64() - begin < kCycles) {
  }
  if (threadIdx.x == 0) *to = 0;
  __syncthreads();
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) sum += x[i];
  for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x) sum += y[i];
  atomicAdd(to, sum);
  __syncthreads();
  if (threadIdx.x == 0) *to *= *factor;
}

/// Makes a mean over rows a sum, and stores the number of rows.
__global__ void multiply_by_rows(float* gradient, std::int64_t columns, std::int64_t rows, double* count) {
  for (std::int64_t i = 0; i < columns; ++i) gradient[i] *= static_cast<float>(rows);
  *count = static_cast<double>(rows);
}

__global__ void write_nowhere() { *reinterpret_cast<int*>(16) = 1; }

__global__ void find_gradient(const float* x, const float* y, const float* params, std::int64_t rows,
                              std::int64_t columns, double* loss, float* gradient) {
  double sum = 0;
  for (std::int64_t i = 0; i < columns; ++i) gradient[i] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    float error = -y[row];
    for (std::int64_t i = 0; i < columns; ++i) error += x[row * columns + i] * params[i];
    for (std::int64_t i = 0; i < columns; ++i) gradient[i] += 2 * error * x[row * columns + i] / rows;
    sum += static_cast<double>(error) * static_cast<double>(error) / rows;
  }
  *loss = sum;
}

}  // namespace

int gpus() { return syncrun::test::gpus_present(); }

Statistics statistics_on_gpu(sr::CudaWorker& worker, sr::Scattered<const double, 1> x) {
  double* const numbers = worker.scratch<double>(2).data();
  Statistics s{.mean = sr::Avg<double>::in_device_memory(numbers),
               .sum = sr::Sum<double>::in_device_memory(numbers + 1),
               .rows = {worker, {x.rows()}}};
  sum_of<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), numbers);
  double_rows<<<blocks_for(x.rows()), kThreads, 0, worker.stream()>>>(x.data(), x.rows(), s.rows.data());
  check_launch();
  return s;
}

Arrays arrays_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size) {
  float* const numbers = worker.scratch<float>(2).data();
  Arrays a{.mean = {worker, {size}}, .most = {worker, {size}}};
  sum_of<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), numbers);
  fill_arrays<<<blocks_for(size), kThreads, 0, worker.stream()>>>(numbers, size, worker.rank(), a.mean.data(),
                                                                  a.most.data());
  check_launch();
  return a;
}

void add_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> values) {
  float* const numbers = worker.scratch<float>(2).data();
  const std::int64_t size = values.value().size();
  sum_of<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), numbers);
  add_number<<<blocks_for(size), kThreads, 0, worker.stream()>>>(numbers, values.original().data(), size,
                                                                 values.value().data());
  check_launch();
}

sr::Sum<double> late_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x,
                                sr::Broadcast<const float, 1> y, sr::DeviceScalar<double> factor) {
  double* const sum = worker.scratch<double>(1).data();
  sum_late<<<1, kThreads, 0, worker.stream()>>>(x.data(), x.rows(), y.data(), y.size(), factor.data(), sum);
  check_launch();
  return sr::Sum<double>::in_device_memory(sum);
}

sr::Avg<double> loss_and_gradient_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 2> x,
                                         sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                                         sr::Local<float, 1> gradient) {
  double* const loss = worker.scratch<double>(1).data();
  find_gradient<<<1, 1, 0, worker.stream()>>>(x.data(), y.data(), params.data(), x.rows(), x.shape(1), loss,
                                              gradient.data());
  check_launch();
  return sr::Avg<double>::in_device_memory(loss);
}

sr::Avg<double> summed_on_gpu(sr::CudaWorker& worker, sr::detail::GradientCount& count, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                              sr::Local<float, 1> gradient) {
  double* const rows = worker.scratch<double>(2).data() + 1;  // the loss comes before it
  const auto loss = loss_and_gradient_on_gpu(worker, x, y, params, gradient);
  multiply_by_rows<<<1, 1, 0, worker.stream()>>>(gradient.data(), x.shape(1), x.rows(), rows);
  check_launch();
  count.set_in_device_memory(rows);
  return loss;
}

void lose_context_on_gpu(sr::CudaWorker& worker) {
  write_nowhere<<<1, 1, 0, worker.stream()>>>();
  check_launch();
}

}  // namespace mixed_test
