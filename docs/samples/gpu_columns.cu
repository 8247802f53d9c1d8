#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

// [kernel]
__global__ void add_columns(const float* x, std::int64_t rows, std::int64_t columns, float factor, float* mean) {
  const std::int64_t column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) sum += x[row * columns + column];
  mean[column] = factor * sum / static_cast<float>(rows);
}
// [/kernel]

// [bodies]
sr::Avg<float, 1> on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 2> x, sr::DeviceScalar<float> factor) {
  sr::Avg<float, 1> mean(worker, {x.shape(1)});
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < x.shape(1); ++column) mean[column] += x(row, column);
  }
  for (float& value : mean) value *= factor.value() / static_cast<float>(x.rows());
  return mean;
}

sr::Avg<float, 1> on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 2> x, float factor) {
  sr::Avg<float, 1> mean(worker, {x.shape(1)});
  const auto blocks = static_cast<unsigned>((x.shape(1) + 127) / 128);
  add_columns<<<blocks, 128, 0, worker.stream()>>>(x.data(), x.rows(), x.shape(1), factor, mean.data());
  return mean;
}
// [/bodies]

// [replayed]
__global__ void scale(float* values, std::int64_t count, const float* factor) {
  const std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= *factor;
}

sr::Avg<float, 1> replayed(sr::CudaWorker& worker, sr::Scattered<const float, 2> x, sr::DeviceScalar<float> factor) {
  sr::Avg<float, 1> mean = on_gpu(worker, x, 1);
  scale<<<1, 128, 0, worker.stream()>>>(mean.data(), mean.size(), factor.data());
  return mean;
}
// [/replayed]

int main(int argc, char** argv) {
  return sr::run(argc, argv, [](sr::Session& session) {
    // [program]
    const auto column_means = session.function(on_cpu, sr::replayable(replayed));
    const auto x = session.data(std::vector<float>(500 * 3, 2.0F), sr::Shape{500, 3});
    for (const float factor : {1.0F, 2.0F, 3.0F}) {
      const auto mean = column_means(x, factor);
      std::printf("%g %g %g\n", mean[0], mean[1], mean[2]);
    }
    // [/program]
  });
}
