#pragma once

// Captures work from a stream into a CUDA graph, to launch it again. Tests and benchmarks use this. In a program with
// Syncrun, the workers capture and launch graphs themselves.

#include <cuda_runtime_api.h>

#include "demos/common/cuda_check.hpp"
#include "demos/common/cuda_owners.hpp"

namespace demos {

class CudaGraph {
 public:
  /// Captures the work that `work()` puts on the stream. Throws std::runtime_error, and any exception of `work`.
  template <class Work>
  CudaGraph(CUstream_st* stream, cudaStreamCaptureMode mode, const Work& work) {
    cudaGraph_t captured = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
    work();
    check_cuda(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    cudaGraphExec_t made = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&made, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    check_cuda(code, "cudaGraphInstantiate");
    exec_.reset(made);
  }

  void launch(CUstream_st* stream) const { check_cuda(cudaGraphLaunch(exec_.get(), stream), "cudaGraphLaunch"); }

 private:
  CudaGraphExec exec_;
};

}  // namespace demos
