#pragma once

// Graphs of captured work on the worker's stream.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/os/capture_listener.hpp"
#include "worker/devices/cuda/cuda_memory.hpp"
#include "worker/devices/cuda/graph_memsets.hpp"

namespace syncrun::detail::worker::devices::cuda {

class CudaGraph final : public DeviceGraph {
 public:
  /// `held` is memory that the work of the graph writes to and that nothing else refers to. `before_launch` may be null.
  CudaGraph(GraphExec exec, std::set<CudaGraph*>& all, std::vector<HeldBlock> held,
            std::unique_ptr<os::BeforeLaunch> before_launch)
      : all_(all), held_(std::move(held)), before_launch_(std::move(before_launch)), exec_(std::move(exec)) {
    all_.insert(this);
  }
  ~CudaGraph() override { all_.erase(this); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(StreamView stream) const {
    if (before_launch_) before_launch_->prepare(stream);
    check_cuda(cudaGraphLaunch(exec_.get(), stream), "cudaGraphLaunch");
  }
  void end() noexcept { exec_.reset(); }

 private:
  std::set<CudaGraph*>& all_;
  std::vector<HeldBlock> held_;  // outlives exec_
  std::unique_ptr<os::BeforeLaunch> before_launch_;
  GraphExec exec_;
};

/// Knows all existing graphs. They must end before the communicator that their collectives use.
class CudaGraphs final : public GraphRecorder {
 public:
  /// `comm` is the communicator of the command that runs.
  CudaGraphs(CudaMemory& memory, NcclComm* const& comm) noexcept : memory_(memory), comm_(comm) {}

  void begin_capture() override {
    if (auto* const listener = os::capture_listener()) listener->begin_capture();
    // Relaxed mode, because libraries may allocate memory for a new shape.
    check_cuda(cudaStreamBeginCapture(memory_.stream(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    memory_.begin_hold();
  }
  std::unique_ptr<DeviceGraph> end_capture() override {
    cudaGraph_t captured = nullptr;
    std::vector<HeldBlock> held = memory_.end_hold();
    const cudaError_t code = cudaStreamEndCapture(memory_.stream(), &captured);
    const Graph graph(captured);
    if (code != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ErrorKind::cuda,
                  std::string("this function cannot be captured for replay: ") + cudaGetErrorString(code) + " (" +
                      cudaGetErrorName(code) +
                      "). Its body must not wait for the stream, and what it puts elsewhere must come back to it",
                  static_cast<int>(code));
    }
    GraphExec exec = instantiate(graph);
    auto* const listener = os::capture_listener();
    return std::make_unique<CudaGraph>(std::move(exec), all_, std::move(held),
                                       listener == nullptr ? nullptr : listener->end_capture());
  }
  const char* abandon_capture() noexcept override {
    if (memory_.is_holding()) {
      const std::vector<HeldBlock> held = memory_.end_hold();
      cudaGraph_t captured = nullptr;
      static_cast<void>(cudaStreamEndCapture(memory_.stream(), &captured));
      Graph(captured).reset();
      static_cast<void>(cudaGetLastError());
    }
    auto* const listener = os::capture_listener();
    return listener == nullptr ? nullptr : listener->abandon_capture();
  }
  void launch(DeviceGraph& graph) override { static_cast<CudaGraph&>(graph).launch(memory_.stream()); }
  std::uint64_t generation() const noexcept override { return generation_; }
  /// Destroys the executable form of all graphs. They cannot be launched any more.
  void end_all() noexcept {
    ++generation_;
    for (CudaGraph* graph : all_) graph->end();
  }

 private:
  GraphExec instantiate(const Graph& graph) const {
    int priority = 0;
    check_cuda(cudaStreamGetPriority(memory_.stream(), &priority), "cudaStreamGetPriority");
    replace_memsets(graph.get(), priority);
    // Without this flag, all nodes of a graph have the priority of the stream into which it is launched.
    unsigned long long flags = 0;
    if (comm_->has_used_background()) flags = cudaGraphInstantiateFlagUseNodePriority;
    cudaGraphExec_t made = nullptr;
    check_cuda(cudaGraphInstantiate(&made, graph.get(), flags), "cudaGraphInstantiate");
    return GraphExec(made);
  }

  CudaMemory& memory_;
  NcclComm* const& comm_;
  std::set<CudaGraph*> all_;
  std::uint64_t generation_ = 0;  // how often they have ended
};

}  // namespace syncrun::detail::worker::devices::cuda
