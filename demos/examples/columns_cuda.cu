// The functions of columns.hpp on CUDA devices. One warp computes each column of z.

#include <cmath>

#include "demos/examples/columns.hpp"

namespace examples {
namespace {

constexpr int kLanes = 32;

__global__ void columns_kernel(const double* x, std::int64_t rows, std::int64_t inner, const double* y,
                               const double* weights, double* mean, double* sum, double* max) {
  const unsigned column = blockIdx.x;
  const unsigned columns = gridDim.x;
  double own_sum = 0;
  double own_max = -INFINITY;
  for (std::int64_t row = threadIdx.x; row < rows; row += kLanes) {
    double z = 0;
    for (std::int64_t i = 0; i < inner; ++i) z += x[row * inner + i] * y[i * columns + column];
    if (weights != nullptr) z *= weights[row];
    own_sum += z;
    own_max = fmax(own_max, z);
  }
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    own_sum += __shfl_xor_sync(0xFFFFFFFFU, own_sum, distance);
    own_max = fmax(own_max, __shfl_xor_sync(0xFFFFFFFFU, own_max, distance));
  }
  if (threadIdx.x != 0) return;
  sum[column] = own_sum;
  mean[column] = own_sum / static_cast<double>(rows);
  max[column] = own_max;
}

Columns launch(sr::CudaWorker& worker, const sr::ArrayView<const double, 2>& x, const double* y, std::int64_t columns,
               const double* weights) {
  Columns own{.mean = {worker, {columns}}, .sum = {worker, {columns}}, .max = {worker, {columns}}};
  columns_kernel<<<static_cast<unsigned>(columns), kLanes, 0, worker.stream()>>>(
      x.data(), x.rows(), x.shape(1), y, weights, own.mean.data(), own.sum.data(), own.max.data());
  return own;
}

}  // namespace

Columns columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y) {
  return launch(worker, x, y.data(), y.shape(1), nullptr);
}

Columns weighted_columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x,
                              sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y) {
  return launch(worker, x, y.data(), y.shape(1), weights.data());
}

Columns columns_of_shards_cuda(sr::CudaWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y) {
  return launch(worker, x, y.data(), y.shape(1), nullptr);
}

}  // namespace examples
