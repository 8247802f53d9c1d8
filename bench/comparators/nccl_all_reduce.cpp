// Measures ncclAllReduce of float32 in place, with one process per GPU, NCCL's default settings and a blocking
// communicator. A sequence of all_reduces runs in a loop, and is also captured into a CUDA graph. Both run once in
// memory of cudaMalloc, and on one node also in memory of ncclMemAlloc that is registered as a symmetric window. On nodes
// with several GPUs each, it measures two ways in three steps too, to see whether they are faster than one ncclAllReduce:
// "nccl_parts" reduces within each node so that each GPU has a part, all-reduces each part between the nodes, and gathers
// the parts within each node. "nccl_leaders" reduces to one GPU of each node, all-reduces among these, and broadcasts.
//
//   nccl_all_reduce --workers 8 --seconds 0.3 --max-bytes 1073741824
//   NCCL_SOCKET_IFNAME=lo nccl_all_reduce --workers 4 --nodes 2

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

/// The communicators of the GPUs of this rank's node, and of those GPUs of all nodes that have the same place in theirs.
struct NodeCommunicators {
  NodeCommunicators(const NcclCommunicator& all, int rank, int size_of_node)
      : size(size_of_node),
        place(rank % size_of_node),
        node(all, rank / size_of_node, rank),
        between(all, rank % size_of_node, rank) {}

  int size;
  int place;
  NcclCommunicator node;
  NcclCommunicator between;
};

enum class Way { one_call, parts, leaders };

class Rank {
 public:
  Rank(Peers& peers, const Options& options)
      : peers_(peers),
        seconds_(options.seconds),
        comm_(peers),
        plain_(Place::device, options.max_bytes),
        memory_(options.max_bytes) {
    if (options.nodes == 1) window_.emplace(comm_, memory_, options.max_bytes);
    const int size_of_node = peers.size() / static_cast<int>(options.nodes);
    if (options.nodes > 1 && size_of_node > 1) nodes_.emplace(comm_, peers.rank(), size_of_node);
  }

  void measure(std::size_t bytes) {
    measure("nccl", plain_.as<void>(), bytes);
    if (window_) measure("nccl_registered", memory_.get(), bytes);
    if (!nodes_) return;
    way_ = Way::parts;
    measure("nccl_parts", plain_.as<void>(), bytes);
    way_ = Way::leaders;
    measure("nccl_leaders", plain_.as<void>(), bytes);
    way_ = Way::one_call;
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
    const std::size_t count = bytes / sizeof(float);
    auto* const values = static_cast<float*>(values_);
    if (way_ == Way::one_call) return all_reduce(values, count, comm_);
    if (way_ == Way::leaders) {
      check_nccl(ncclReduce(values, values, count, ncclFloat32, ncclSum, 0, nodes_->node.get(), stream_.get()));
      if (nodes_->place == 0) all_reduce(values, count, nodes_->between);
      check_nccl(ncclBroadcast(values, values, count, ncclFloat32, 0, nodes_->node.get(), stream_.get()));
      return;
    }
    const std::size_t part = count / static_cast<std::size_t>(nodes_->size);  // all sizes are multiples of 64
    float* const own = values + part * static_cast<std::size_t>(nodes_->place);
    check_nccl(ncclReduceScatter(values, own, part, ncclFloat32, ncclSum, nodes_->node.get(), stream_.get()));
    all_reduce(own, part, nodes_->between);
    check_nccl(ncclAllGather(own, values, part, ncclFloat32, nodes_->node.get(), stream_.get()));
  }
  void all_reduce(float* values, std::size_t count, const NcclCommunicator& among) {
    check_nccl(ncclAllReduce(values, values, count, ncclFloat32, ncclSum, among.get(), stream_.get()));
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
  std::optional<NodeCommunicators> nodes_;  // on nodes with several GPUs each
  Way way_ = Way::one_call;
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
