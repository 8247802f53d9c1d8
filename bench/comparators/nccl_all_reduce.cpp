// Measures ncclAllReduce of float32 in place, with one process per GPU, NCCL's default settings and a blocking
// communicator. A sequence of all_reduces runs in a loop, and is also captured into a CUDA graph. Both run once in
// memory of cudaMalloc, and on one node also in memory of ncclMemAlloc that is registered as a symmetric window.
//
//   nccl_all_reduce --workers 8 --seconds 0.3 --max-bytes 1073741824

#include <nccl.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "bench/comparators/gpu_owners.hpp"
#include "bench/comparators/gpu_ranks.hpp"
#include "bench/comparators/gpu_report.hpp"
#include "bench/comparators/gpu_timer.hpp"
#include "bench/comparators/nccl_owners.hpp"

namespace {

using namespace comparators;

class Rank {
 public:
  Rank(Peers& peers, const Options& options)
      : peers_(peers),
        seconds_(options.seconds),
        comm_(peers),
        plain_(Place::device, options.max_bytes),
        memory_(options.max_bytes) {
    if (options.nodes == 1) window_.emplace(comm_, memory_, options.max_bytes);
  }

  void measure(std::size_t bytes) {
    measure("nccl", plain_.as<void>(), bytes);
    if (window_) measure("nccl_registered", memory_.get(), bytes);
  }

 private:
  void measure(const char* implementation, void* values, std::size_t bytes) {
    implementation_ = implementation;
    values_ = values;
    check_one(bytes);
    report(all_reduce_text(bytes, "eager"), bytes, [&] { put_sequence(bytes); });
    check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    put_sequence(bytes);
    cudaGraph_t captured = nullptr;
    check_cuda(cudaStreamEndCapture(stream_.get(), &captured));
    const GpuGraph graph(captured);
    report(all_reduce_text(bytes, "graph"), bytes, [&] { graph.launch(stream_.get()); });
  }

  void all_reduce(std::size_t bytes) {
    check_nccl(
        ncclAllReduce(values_, values_, bytes / sizeof(float), ncclFloat32, ncclSum, comm_.get(), stream_.get()));
  }

  void check_one(std::size_t bytes) {
    std::vector<float> values = all_reduce_values(bytes);
    check_cuda(cudaMemcpy(values_, values.data(), bytes, cudaMemcpyHostToDevice));
    all_reduce(bytes);
    check_cuda(cudaStreamSynchronize(stream_.get()));
    check_cuda(cudaMemcpy(values.data(), values_, bytes, cudaMemcpyDeviceToHost));
    require_all_reduced(values, values.size(), peers_.size());
  }

  /// Puts the timed sequence on the stream. An all_reduce before it, which is not timed, makes the ranks start
  /// together.
  void put_sequence(std::size_t bytes) {
    all_reduce(bytes);
    timer_.begin(stream_.get());
    for (int i = 0; i < all_reduce_repeats(bytes); ++i) all_reduce(bytes);
    timer_.end(stream_.get());
  }

  template <class Start>
  void report(const std::string& what, std::size_t bytes, Start start) {
    constexpr int kWarm = 3;
    const auto once_us = [&] {
      peers_.barrier();
      start();
      return peers_.max(timer_.elapsed_us());
    };
    double warm_us = 0;
    for (int i = 0; i < kWarm; ++i) warm_us = once_us();
    std::vector<double> samples(static_cast<std::size_t>(iterations_for(seconds_, warm_us)));
    for (auto& sample : samples) sample = once_us() / all_reduce_repeats(bytes);
    if (peers_.rank() == 0)
      print_gpu_line({"gpu_all_reduce", implementation_, peers_.size(), what}, std::move(samples));
  }

  Peers& peers_;
  double seconds_;
  GpuStream stream_;
  GpuTimer timer_;
  NcclCommunicator comm_;
  GpuBuffer plain_;
  NcclMemory memory_;
  std::optional<NcclWindow> window_;
  const char* implementation_ = nullptr;
  void* values_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return report_errors([&] {
    const Options options = parse_options(argc, argv);
    return run_on_gpus(static_cast<int>(options.workers), [&](Peers& peers) {
      if (options.nodes > 1) {
        const auto node = static_cast<std::size_t>(peers.rank()) * options.nodes / options.workers;
        ::setenv("NCCL_HOSTID", ("node" + std::to_string(node)).c_str(), 1);
      }
      Rank rank(peers, options);
      for (const std::size_t bytes : kAllReduceBytes) {
        if (bytes >= options.min_bytes && bytes <= options.max_bytes) rank.measure(bytes);
      }
    });
  });
}
