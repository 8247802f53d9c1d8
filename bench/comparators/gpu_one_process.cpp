// Moves between two GPUs, and matrix products on both, from one process that uses CUDA directly. The moves are
// cudaMemcpyPeerAsync on a stream of the destination. bench_gpu_values does the same with Syncrun.
//
//   gpu_one_process --seconds 1

#include <deque>

#include "bench/comparators/gpu_values.hpp"

namespace {

using namespace comparators;

using Cublas = GpuOwner<cublasHandle_t, cublasDestroy>;

Cublas make_cublas(cudaStream_t stream) {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS || cublasSetStream(handle, stream) != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error("cuBLAS does not start");
  }
  return Cublas(handle);
}

/// One GPU, with its stream and matrices. The constructor makes the GPU current.
struct OneGpu {
  explicit OneGpu(int device) : index((check_cuda(cudaSetDevice(device)), device)) {}
  void use() const { check_cuda(cudaSetDevice(index)); }
  int index;
  GpuStream stream;
  Product product;
  Cublas cublas = make_cublas(stream.get());
};

void enable_access(int from, int to) {
  check_cuda(cudaSetDevice(from));
  check_cuda(cudaDeviceEnablePeerAccess(to, 0));
}

void measure_moves(const OneGpu& source, const OneGpu& destination, std::size_t bytes, double seconds) {
  source.use();
  std::deque<GpuBuffer> from;  // buffers cannot be moved
  for (int i = 0; i < kMovesInARow; ++i) from.emplace_back(Place::device, bytes);
  destination.use();
  std::deque<GpuBuffer> to;
  for (int i = 0; i < kMovesInARow; ++i) to.emplace_back(Place::device, bytes);
  const auto moves = [&](std::size_t count) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      check_cuda(cudaMemcpyPeerAsync(to[i].as<void>(), destination.index, from[i].as<void>(), source.index, bytes,
                                     destination.stream.get()));
    }
    check_cuda(cudaStreamSynchronize(destination.stream.get()));
    return microseconds_since(start);
  };
  print_gpu_line({"gpu_values", "one_process", 2, one_move_of(bytes), bytes},
                 samples_of(seconds, [&] { return moves(1); }));
  print_gpu_line({"gpu_values", "one_process", 2, moves_of(bytes), bytes * kMovesInARow},
                 samples_of(seconds, [&] { return moves(kMovesInARow); }));
}

/// Each step copies the last result from the other GPU, runs a kernel, and waits.
void measure_chain(const OneGpu& first, const OneGpu& second) {
  struct Place {
    const OneGpu& gpu;
    GpuBuffer in{comparators::Place::device, sizeof(double)};
    GpuBuffer out{comparators::Place::device, sizeof(double)};
  };
  first.use();
  const Place a{first};
  second.use();
  const Place b{second};
  const auto step = [](const Place& to, const Place& from) {
    to.gpu.use();
    const cudaStream_t stream = to.gpu.stream.get();
    check_cuda(cudaMemcpyPeerAsync(to.in.as<void>(), to.gpu.index, from.out.as<void>(), from.gpu.index, sizeof(double),
                                   stream));
    add_one(to.in.as<double>(), to.out.as<double>(), stream);
    check_cuda(cudaStreamSynchronize(stream));
  };
  std::vector<double> samples(20);
  for (auto& sample : samples) {
    const auto start = Clock::now();
    for (int i = 0; i < kChainCalls / 2; ++i) {
      step(b, a);
      step(a, b);
    }
    sample = microseconds_since(start) / kChainCalls;
  }
  print_gpu_line({"gpu_values", "one_process", 2, kChain}, std::move(samples));
}

void measure_products(const OneGpu& first, const OneGpu& second, double seconds) {
  const auto once = [&] {
    const auto start = Clock::now();
    for (const OneGpu* const gpu : {&first, &second}) {
      gpu->use();
      gpu->product.run(gpu->cublas.get());
    }
    for (const OneGpu* const gpu : {&first, &second}) check_cuda(cudaStreamSynchronize(gpu->stream.get()));
    return microseconds_since(start);
  };
  print_gpu_line({"gpu_values", "one_process", 2, kTwoProducts}, samples_of(seconds, once));
}

}  // namespace

int main(int argc, char** argv) {
  return report_errors([&] {
    const Options options = parse_options(argc, argv);
    const OneGpu first(0);
    const OneGpu second(1);
    enable_access(0, 1);
    enable_access(1, 0);
    measure_chain(first, second);
    measure_products(first, second, options.seconds);
    for (const std::size_t bytes : kMoveBytes) measure_moves(first, second, bytes, options.seconds);
    return 0;
  });
}
