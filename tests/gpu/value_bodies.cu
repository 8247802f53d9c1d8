#include <cuda_runtime.h>

#include "tests/gpu/value_bodies.hpp"

namespace gpu_test {

namespace {

template <class F>
__global__ void for_each(std::int64_t count, float* out, F f) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = f(i);
}

template <class F>
void fill(sr::CudaWorker& worker, float* out, std::int64_t count, F f) {
  if (count != 0) for_each<<<32, 128, 0, worker.stream()>>>(count, out, f);
}

}  // namespace

sr::Keep<float, 1> kept_twice(sr::CudaWorker& worker, sr::Local<const float, 1> x) {
  sr::Keep<float, 1> y(worker, x.shape());
  fill(worker, y.data(), y.rows(), [x = x.data()] __device__(std::int64_t i) { return 2 * x[i]; });
  return y;
}

sr::Keep<float, 1> kept_sum(sr::CudaWorker& worker, sr::Local<const float, 1> x, sr::Local<const float, 1> y) {
  sr::Keep<float, 1> z(worker, x.shape());
  fill(worker, z.data(), z.rows(), [x = x.data(), y = y.data()] __device__(std::int64_t i) { return x[i] + y[i]; });
  return z;
}

void add_to(sr::CudaWorker& worker, sr::Local<float, 1> x, float number) {
  fill(worker, x.data(), x.rows(), [x = x.data(), number] __device__(std::int64_t i) { return x[i] + number; });
}

sr::Gather<float, 1> elements_of(sr::CudaWorker& worker, sr::Local<const float, 1> x) {
  sr::Gather<float, 1> y(worker, x.shape());
  fill(worker, y.data(), y.rows(), [x = x.data()] __device__(std::int64_t i) { return x[i]; });
  return y;
}

sr::Gather<float, 1> last_element_of(sr::CudaWorker& worker, sr::Local<const float, 1> x) {
  sr::Gather<float, 1> y(worker, {1});
  fill(worker, y.data(), 1, [x = x.data() + x.rows() - 1] __device__(std::int64_t) { return *x; });
  return y;
}

sr::Keep<float, 1> kept_filled(sr::CudaWorker& worker, std::int64_t count, float value) {
  sr::Keep<float, 1> y(worker, {count});
  fill(worker, y.data(), count, [value] __device__(std::int64_t) { return value; });
  return y;
}

void HostRuns::step(sr::CudaWorker& worker, sr::Local<float, 1> x, sr::Local<float, 1> y) {
  ++runs;
  fill(worker, y.data(), y.rows(), [x = x.data()] __device__(std::int64_t i) { return x[i] + 1; });
  fill(worker, x.data(), x.rows(), [y = y.data()] __device__(std::int64_t i) { return y[i]; });
}

}  // namespace gpu_test
