// ncclAllReduce of float32 in place, a process per GPU, with NCCL's default settings and a blocking communicator: a
// sequence of them in a loop, and the same sequence captured into a CUDA graph. Once in memory of cudaMalloc, and once in
// memory of ncclMemAlloc that is registered as a symmetric window.
//
//   nccl_all_reduce --workers 8 --seconds 0.3 --max-bytes 1073741824

#include <nccl.h>

#include "bench/comparators/gpu_owners.hpp"
#include "bench/comparators/gpu_ranks.hpp"
#include "bench/comparators/gpu_report.hpp"
#include "bench/comparators/gpu_timer.hpp"

namespace {

using namespace comparators;

void check_nccl(ncclResult_t code, std::source_location where = std::source_location::current()) {
  if (code == ncclSuccess) return;
  throw std::runtime_error(std::string(ncclGetErrorString(code)) + " at line " + std::to_string(where.line()));
}

class Communicator : public GpuOwner<ncclComm_t, ncclCommDestroy> {
 public:
  explicit Communicator(Peers& peers) : GpuOwner(make(peers)) {}

 private:
  static ncclComm_t make(Peers& peers) {
    ncclUniqueId id{};
    if (peers.rank() == 0) check_nccl(ncclGetUniqueId(&id));
    id = peers.from_first(id);
    ncclComm_t comm = nullptr;
    check_nccl(ncclCommInitRank(&comm, peers.size(), id, peers.rank()));
    return comm;
  }
};

/// Memory of NCCL's that all ranks have registered together: it may then read and write peers' memory as it is.
class SymmetricWindow {
 public:
  SymmetricWindow(const Communicator& comm, std::size_t bytes) : comm_(comm) {
    check_nccl(ncclMemAlloc(&memory_, bytes));
    check_nccl(ncclCommWindowRegister(comm_.get(), memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC));
  }
  ~SymmetricWindow() {
    static_cast<void>(ncclCommWindowDeregister(comm_.get(), window_));
    static_cast<void>(ncclMemFree(memory_));
  }
  SymmetricWindow(const SymmetricWindow&) = delete;
  SymmetricWindow& operator=(const SymmetricWindow&) = delete;
  void* memory() const noexcept { return memory_; }

 private:
  const Communicator& comm_;
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

class Rank {
 public:
  Rank(Peers& peers, double seconds, std::size_t max_bytes)
      : peers_(peers), seconds_(seconds), comm_(peers), plain_(Place::device, max_bytes), window_(comm_, max_bytes) {}

  void measure(std::size_t bytes) {
    measure("nccl", plain_.as<void>(), bytes);
    measure("nccl_registered", window_.memory(), bytes);
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

  /// The first one brings the ranks together, and is not timed.
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
  Communicator comm_;
  GpuBuffer plain_;
  SymmetricWindow window_;
  const char* implementation_ = nullptr;
  void* values_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return report_errors([&] {
    const Options options = parse_options(argc, argv);
    return run_on_gpus(static_cast<int>(options.workers), [&](Peers& peers) {
      Rank rank(peers, options.seconds, options.max_bytes);
      for (const std::size_t bytes : kAllReduceBytes) {
        if (bytes >= options.min_bytes && bytes <= options.max_bytes) rank.measure(bytes);
      }
    });
  });
}
