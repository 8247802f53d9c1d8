#pragma once

// A CUDA device: its streams, memory and library handles, and the transfers between it and shared memory.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "worker/devices/cuda/memory_pool.hpp"
#include "worker/devices/cuda/nccl_comm.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/cuda/peer_copies.hpp"
#include "worker/devices/cuda/pinned_pages.hpp"
#include "worker/devices/cuda/staging_lanes.hpp"
#include "worker/devices/gpu_device.hpp"
#include "worker/devices/staging.hpp"

namespace syncrun::detail {

class CudaGraph;

/// All existing graphs. They must end before the communicator that their collectives use.
class CudaGraphs {
 public:
  void add(CudaGraph& graph) { all_.insert(&graph); }
  void remove(CudaGraph& graph) noexcept { all_.erase(&graph); }
  /// Destroys the executable form of all graphs. They cannot be launched any more.
  void end_all() noexcept;
  /// How often they have ended.
  std::uint64_t generation() const noexcept { return generation_; }

 private:
  std::set<CudaGraph*> all_;
  std::uint64_t generation_ = 0;
};

class CudaDevice final : public GpuDevice {
 public:
  /// Makes the worker's GPU current, and makes a stream on it. Throws Error (cuda).
  explicit CudaDevice(const DeviceContext& context);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) override;
  void release(void* memory) noexcept override;
  OutputBuffer allocate_output(std::size_t bytes) override;
  OutputBuffer adopt_output(OutputBuffer buffer) override;

  bool is_open_to_peers() const noexcept override { return is_open_to_peers_; }
  std::uint64_t export_memory(void* memory) override;
  void forget_replaced_peers() noexcept override;
  void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) override;
  bool start_copy_ahead(std::uint64_t command, void* to, const PeerMemoryPlace& from, std::size_t bytes) override;
  bool finish_copy_ahead(std::uint64_t command) override;

  std::uint64_t place_of(const void* memory) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  void* at(std::uint64_t place) const noexcept override { return reinterpret_cast<void*>(place); }

  void* take_rows(std::size_t argument, const SharedRows& rows, std::int64_t begin, std::int64_t count) override;
  void* gather_rows(std::size_t argument, const SharedRows& rows, std::span<const std::int64_t> indices) override;
  void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                          std::span<const std::int64_t> indices) override;
  const void* take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) override;
  void begin_command(std::uint64_t command) override { staging_.begin_command(command); }
  void begin_body() override { staging_.flush(); }
  void begin_ahead(std::uint64_t command) override { staging_.begin_ahead(command); }
  void end_ahead() override { staging_.end_ahead(); }
  void drop_ahead() noexcept override { staging_.abandon(); }
  void unpin() override;

  void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override;
  void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override;
  void copy_within(void* to, const void* from, std::size_t bytes) override;
  void clear(void* device_memory, std::size_t bytes) override;
  void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                  std::size_t elements) override;
  void convert(ElementTypes types, const void* from, void* to, std::size_t elements) override;

  void apply_update(const UpdateWork& work) override;

  std::uint64_t share_output(OutputBuffer buffer) override;
  std::size_t large_output_bytes() const noexcept override { return std::size_t{64} << 10U; }
  bool shares_before_reducing() const noexcept override { return false; }
  std::uint64_t reduce_output(const OutputReduction& what, OutputBuffer own) override;

  void sum_squares(const UpdateWork& work, double* squares) override;
  void take_root(double* number) override;
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void abandon_capture() noexcept override;
  void launch(DeviceGraph& graph) override;
  std::uint64_t graph_generation() const noexcept override { return graphs_.generation(); }

  CommCore& comm(const CommandHead& command) override;
  CommCore& solo() noexcept override { return solo_; }

  CUstream_st* stream() noexcept override { return stream_.get(); }
  cublasContext* cublas() override;
  cudnnContext* cudnn() override;

  MemorySize memory() override;
  std::string hardware() const override;

  void abandon() noexcept override;
  void finish() override { finish(NcclComm::Wait::last); }
  bool is_lost() const noexcept override;

 private:
  /// A communicator of one rank, in the order of the stream.
  class Solo final : public SoloComm {
   public:
    explicit Solo(CudaDevice& device) : device_(device) {}
    void all_reduce_value(void*, DType, Reduction, const RankWeights&) override {
      refuse_number_in_capture(device_.stream());
    }
    void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override {
      refuse_exchange_in_capture(device_.stream());
      SoloComm::exchange(own, all);
    }

   private:
    void copy(void* to, const void* from, std::size_t bytes) override { device_.copy_within(to, from, bytes); }
    CudaDevice& device_;
  };

  NcclComm& comm_of(const RankSet& ranks, CommChoice choice);
  void release_held(std::vector<void*>& held) noexcept;
  void set_capturing(bool is_capturing) noexcept;
  bool find_whether_open_to_peers();
  GraphExec instantiate(const Graph& graph);
  std::uint64_t share(const void* memory, std::size_t bytes);
  OutputBuffer as_partial(const OutputReduction& what, OutputBuffer own);
  void finish(NcclComm::Wait wait);
  void await_stream();
  void await(cudaStream_t stream);

  const DeviceContext context_;
  const Segment& segment_;
  Stream stream_;  // outlives the members that put work on it
  MemoryPool pool_{[this](void* chunk) { return peer_copies_.take_back(chunk); }};
  PinnedPages pinned_;
  CudaLanes lanes_{pinned_, context_, stream_, [this] { pool_.trim(); }};
  Staging staging_{lanes_};
  PeerCopies peer_copies_;
  bool is_open_to_peers_ = true;
  Stream ahead_stream_;             // for copies from peers, made when it is first needed
  std::uint64_t copied_ahead_ = 0;  // the command for which such a copy was started, or 0
  CudaGraphs graphs_;
  CollectivePlan plan_;
  std::map<int, NcclComm> comms_;  // by CommChoice::index
  NcclComm* comm_;                 // the one that was used last. Only this one can have unfinished work
  Solo solo_{*this};
  CublasHandle cublas_;
  CudnnHandle cudnn_;
  bool is_capturing_ = false;
  std::vector<void*> held_;  // memory that was released during a capture
};

}  // namespace syncrun::detail
