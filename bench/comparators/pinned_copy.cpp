// Measures how fast the machine moves host memory to all of its GPUs at the same time. One process per GPU copies a
// pinned buffer of its own with one cudaMemcpyAsync, between two barriers. A contiguous scatter cannot be faster.
//
//   pinned_copy --workers 8 --seconds 1

#include "bench/comparators/gpu_ranks.hpp"
#include "bench/comparators/gpu_report.hpp"

namespace {

using namespace comparators;

double copy_once_us(Peers& peers, const GpuBuffer& from, const GpuBuffer& to, std::size_t bytes, cudaStream_t stream) {
  peers.barrier();
  const auto start = Clock::now();
  check_cuda(cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyHostToDevice, stream));
  check_cuda(cudaStreamSynchronize(stream));
  peers.barrier();
  return microseconds_since(start);
}

void measure(Peers& peers, double seconds, std::size_t bytes) {
  constexpr int kWarm = 3;
  const GpuStream stream;
  const GpuBuffer from(Place::pinned_host, bytes);
  const GpuBuffer to(Place::device, bytes);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) from.as<float>()[i] = static_cast<float>(i % 1021);
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = copy_once_us(peers, from, to, bytes, stream.get());
  const long count = iterations_for(seconds, peers.max(warm_us));
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) sample = copy_once_us(peers, from, to, bytes, stream.get());
  if (peers.rank() != 0) return;
  print_gpu_line(
      {"gpu_scatter", "pinned_copy", peers.size(), scatter_text(bytes), bytes * static_cast<std::size_t>(peers.size())},
      std::move(samples));
}

}  // namespace

int main(int argc, char** argv) {
  return report_errors([&] {
    const Options options = parse_options(argc, argv);
    return run_on_gpus(static_cast<int>(options.workers), [&](Peers& peers) {
      for (const std::size_t bytes : kScatterBytes) measure(peers, options.seconds, bytes);
    });
  });
}
