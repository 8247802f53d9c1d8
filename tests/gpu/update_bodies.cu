#include "tests/gpu/update_bodies.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

namespace gpu_test {

namespace {

void check_launch() {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

/// Runs in one thread. Computes the errors of all rows, and their mean square.
template <class T>
__global__ void find_errors(const T* x, const T* y, const T* params, std::int64_t rows, std::int64_t columns, T* errors,
                            double* loss) {
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    T error = -y[row];
    for (std::int64_t i = 0; i < columns; ++i) error += x[row * columns + i] * params[i];
    errors[row] = error;
    sum += static_cast<double>(error) * static_cast<double>(error);
  }
  *loss = sum / static_cast<double>(rows);
}

template <class T>
__global__ void find_gradient(const T* x, const T* errors, std::int64_t rows, std::int64_t columns, T* gradient) {
  const std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= columns) return;
  T sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) sum += 2 * errors[row] * x[row * columns + i] / static_cast<T>(rows);
  gradient[i] = sum;
}

}  // namespace

template <class T>
sr::Avg<double> loss_and_gradient(sr::CudaWorker& worker, sr::Scattered<const T, 2> x, sr::Scattered<const T, 1> y,
                                  sr::Local<T, 1> params, sr::Local<T, 1> gradient) {
  double* const loss = worker.scratch<double>(1 + x.rows()).data();
  T* const errors = reinterpret_cast<T*>(loss + 1);
  const auto blocks = static_cast<unsigned>((x.shape(1) + 127) / 128);
  find_errors<<<1, 1, 0, worker.stream()>>>(x.data(), y.data(), params.data(), x.rows(), x.shape(1), errors, loss);
  find_gradient<<<blocks, 128, 0, worker.stream()>>>(x.data(), errors, x.rows(), x.shape(1), gradient.data());
  check_launch();
  return sr::Avg<double>::in_device_memory(loss);
}

template sr::Avg<double> loss_and_gradient(sr::CudaWorker&, sr::Scattered<const float, 2>,
                                           sr::Scattered<const float, 1>, sr::Local<float, 1>, sr::Local<float, 1>);
template sr::Avg<double> loss_and_gradient(sr::CudaWorker&, sr::Scattered<const double, 2>,
                                           sr::Scattered<const double, 1>, sr::Local<double, 1>, sr::Local<double, 1>);

void gradient_is_params(sr::CudaWorker& worker, sr::Scattered<const float, 1>, sr::Local<float, 1> params,
                        sr::Local<float, 1> gradient) {
  const cudaError_t code = cudaMemcpyAsync(gradient.data(), params.data(), params.span().size_bytes(),
                                           cudaMemcpyDeviceToDevice, worker.stream());
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

}  // namespace gpu_test
