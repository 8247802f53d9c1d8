#pragma once

// Graphs of captured work on the worker's stream.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/devices/cuda/cuda_memory.hpp"
#include "worker/devices/cuda/graph_memsets.hpp"

namespace syncrun::detail::worker::devices::cuda {

class CudaGraph final : public DeviceGraph {
 public:
  /// `held` is memory that the work of the graph writes to and that nothing else refers to.
  CudaGraph(GraphExec exec, std::set<CudaGraph*>& all, std::vector<HeldBlock> held)
      : all_(all), held_(std::move(held)), exec_(std::move(exec)) {
    all_.insert(this);
  }
  ~CudaGraph() override { all_.erase(this); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t exec() const noexcept { return exec_.get(); }
  void end() noexcept { exec_.reset(); }

 private:
  std::set<CudaGraph*>& all_;
  std::vector<HeldBlock> held_;  // outlives exec_
  GraphExec exec_;
};

/// Knows all existing graphs. They must end before the communicator that their collectives use.
class CudaGraphs final : public GraphRecorder {
 public:
  /// `comm` is the communicator of the command that runs.
  CudaGraphs(CudaMemory& memory, NcclComm* const& comm) noexcept : memory_(memory), comm_(comm) {}

  void begin_capture() override {
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
    return std::make_unique<CudaGraph>(instantiate(graph), all_, std::move(held));
  }
  void abandon_capture() noexcept override {
    if (!memory_.is_holding()) return;
    const std::vector<HeldBlock> held = memory_.end_hold();
    cudaGraph_t captured = nullptr;
    static_cast<void>(cudaStreamEndCapture(memory_.stream(), &captured));
    Graph(captured).reset();
    static_cast<void>(cudaGetLastError());
  }
  void launch(DeviceGraph& graph) override {
    check_cuda(cudaGraphLaunch(static_cast<CudaGraph&>(graph).exec(), memory_.stream()), "cudaGraphLaunch");
  }
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
