// Measures a step of the ResNet demo's network alone, in one process on one GPU. The prepared rows are on the device. A
// step consists of forward, loss and backward, without workers and without an update. The rest of a training step is
// measured against the printed time. The times of convolutions are those of cuDNN. A profiler that waits for
// cudaProfilerStart sees one step (see resnet_kernels.py):
//
//   bench_resnet_network --batch 256 --steps 30

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <getopt.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

#include "demos/common/cuda_check.hpp"
#include "demos/common/cuda_graph.hpp"
#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/resnet/network/cuda/cuda_network.hpp"
#include "demos/resnet/network/cuda/cuda_queue.hpp"
#include "demos/resnet/network/parameters.hpp"

namespace {

using demos::check_cuda;

constexpr std::size_t kClasses = 1000;
constexpr std::size_t kCrop = 224;
constexpr int kSamples = 5;

struct Options {
  int depth = 50;
  std::size_t batch = 256;
  int steps = 20;
};

bool parse_options(int argc, char** argv, Options& options) {
  const std::array long_options{option{"batch", required_argument, nullptr, 'b'},
                                option{"steps", required_argument, nullptr, 's'},
                                option{"depth", required_argument, nullptr, 'd'}, option{}};
  for (int chosen = 0; (chosen = getopt_long(argc, argv, "", long_options.data(), nullptr)) != -1;) {
    if (chosen == 'b') options.batch = std::strtoull(optarg, nullptr, 10);
    else if (chosen == 's') options.steps = std::atoi(optarg);
    else if (chosen == 'd') options.depth = std::atoi(optarg);
    else return false;
  }
  return optind == argc && options.batch > 0 && options.steps > 0;
}

template <typename T>
demos::DeviceBuffer on_device(const std::vector<T>& values) {
  demos::DeviceBuffer buffer(values.size() * sizeof(T));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

std::vector<float> random_images(std::size_t rows) {
  std::mt19937 random(1);
  std::normal_distribution<float> pixel;
  std::vector<float> values(rows * kCrop * kCrop * 3);
  // The time of a step does not depend on the pixels, as long as they differ. So only one row is random.
  const std::size_t row = kCrop * kCrop * 3;
  std::generate_n(values.begin(), row, [&] { return pixel(random); });
  for (std::size_t i = row; i < values.size(); ++i) values[i] = values[(i - row) / row * row + (i * 17) % row];
  return values;
}

std::vector<std::int64_t> some_labels(std::size_t rows) {
  std::vector<std::int64_t> labels(rows);
  for (std::size_t i = 0; i < rows; ++i) labels[i] = static_cast<std::int64_t>(i * 37 % kClasses);
  return labels;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        architecture_(resnet::plan({.depth = options.depth, .image_size = kCrop, .classes = kClasses})),
        free_before_(free_bytes()),
        network_(architecture_, resnet::CudaMath::kBfloat16),
        params_(on_device(resnet::initial_parameters(architecture_, 1, resnet::ResidualScale::kOne))),
        statistics_(on_device(resnet::initial_statistics(architecture_))),
        gradient_(architecture_.parameter_count * sizeof(float)),
        images_(on_device(random_images(options.batch))),
        labels_(on_device(some_labels(options.batch))) {}

  /// The time of a captured step in microseconds: the median of the samples.
  double measure() {
    for (int i = 0; i < 3; ++i) step();
    finish();
    const demos::CudaGraph graph(queue_.stream(), cudaStreamCaptureModeThreadLocal, [this] { step(); });
    const demos::CudaEvent begin = demos::make_cuda_event(demos::EventUse::kTime);
    const demos::CudaEvent end = demos::make_cuda_event(demos::EventUse::kTime);
    std::vector<double> samples;
    for (int sample = 0; sample < kSamples; ++sample) {
      check_cuda(cudaEventRecord(begin.get(), queue_.stream()), "cudaEventRecord");
      for (int i = 0; i < options_.steps; ++i) graph.launch(queue_.stream());
      check_cuda(cudaEventRecord(end.get(), queue_.stream()), "cudaEventRecord");
      finish();
      float milliseconds = 0;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
      samples.push_back(1000.0 * static_cast<double>(milliseconds) / options_.steps);
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

  /// Runs one step, which is not captured, between the calls for which a profiler waits.
  void show_one_step() {
    check_cuda(cudaProfilerStart(), "cudaProfilerStart");
    step();
    finish();
    check_cuda(cudaProfilerStop(), "cudaProfilerStop");
  }

  double gib() const { return static_cast<double>(free_before_ - free_bytes()) / (1 << 30); }
  const resnet::CudaNetwork& network() const { return network_; }

 private:
  static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t all = 0;
    check_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    return free;
  }
  void step() {
    const resnet::CudaBatch batch{.rows = options_.batch,
                                  .images = nullptr,
                                  .labels = static_cast<const std::int64_t*>(labels_.data()),
                                  .row_ids = nullptr,
                                  .image_shape = {},
                                  .preparation = {},
                                  .key = nullptr,
                                  .normalised = static_cast<const float*>(images_.data())};
    network_.loss_and_gradient(queue_.handles(), batch, static_cast<const float*>(params_.data()),
                               static_cast<float*>(statistics_.data()), {}, {}, static_cast<float*>(gradient_.data()));
  }
  void finish() { check_cuda(cudaStreamSynchronize(queue_.stream()), "cudaStreamSynchronize"); }

  Options options_;
  resnet::Architecture architecture_;
  resnet::CudaQueue queue_;
  std::size_t free_before_;
  resnet::CudaNetwork network_;
  demos::DeviceBuffer params_;
  demos::DeviceBuffer statistics_;
  demos::DeviceBuffer gradient_;
  demos::DeviceBuffer images_;
  demos::DeviceBuffer labels_;
};

int run(const Options& options) {
  Bench bench(options);
  const double step_us = bench.measure();
  bench.show_one_step();
  const auto convolutions = bench.network().convolution_microseconds();
  std::printf(
      "{\"bench\":\"resnet_network\",\"depth\":%d,\"batch\":%zu,\"median_us\":%.1f,\"forward_us\":%.1f,"
      "\"backward_input_us\":%.1f,\"backward_filter_us\":%.1f,\"gib\":%.2f}\n",
      options.depth, options.batch, step_us, convolutions[0], convolutions[1], convolutions[2], bench.gib());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse_options(argc, argv, options)) {
    std::fprintf(stderr, "usage: bench_resnet_network [--depth 18|34|50|101|152] [--batch ROWS] [--steps N]\n");
    return 2;
  }
  try {
    return run(options);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bench_resnet_network: %s\n", failure.what());
    return 1;
  }
}
