#pragma once

// The owners of streams, events, graphs and library handles: one move-only type for each. Needs no CUDA header.

#include <memory>

struct CUevent_st;
struct CUgraphExec_st;
struct CUstream_st;
struct cublasContext;
struct cudnnContext;

namespace demos {

/// Ends what CUDA or one of its libraries has made.
struct EndCuda {
  void operator()(CUstream_st* stream) const noexcept;
  void operator()(CUevent_st* event) const noexcept;
  void operator()(CUgraphExec_st* graph) const noexcept;
  void operator()(cublasContext* handle) const noexcept;
  void operator()(cudnnContext* handle) const noexcept;
};

using CudaStream = std::unique_ptr<CUstream_st, EndCuda>;
using CudaEvent = std::unique_ptr<CUevent_st, EndCuda>;
using CudaGraphExec = std::unique_ptr<CUgraphExec_st, EndCuda>;
using CublasHandle = std::unique_ptr<cublasContext, EndCuda>;
using CudnnHandle = std::unique_ptr<cudnnContext, EndCuda>;

/// On the current device, as all of these. It does not wait for the default stream. Throws std::runtime_error, as all of
/// these.
CudaStream make_cuda_stream();

/// What an event is for.
enum class EventUse { kOrder, kTime };
CudaEvent make_cuda_event(EventUse use);

/// Bound to the stream.
CublasHandle make_cublas(CUstream_st* stream);
/// Bound to the stream. Throws std::runtime_error also where this was built without cuDNN.
CudnnHandle make_cudnn(CUstream_st* stream);

}  // namespace demos
