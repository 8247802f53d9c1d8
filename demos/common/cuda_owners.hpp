#pragma once

// The owners of streams, events, graphs and library handles, with one move-only type for each. It also has views, which
// lend streams and handles for the time of a call. This header needs no CUDA header: it declares the types that the
// CUDA headers use for streams and handles.

#include <memory>

struct CUevent_st;
struct CUgraphExec_st;
struct CUstream_st;
struct cublasContext;
struct cudnnContext;

namespace demos {

/// Destroys an object of CUDA or of one of its libraries.
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

/// Makes a stream that does not wait for the default stream. All make_ functions here work on the current device and
/// throw std::runtime_error if CUDA fails.
CudaStream make_cuda_stream();

/// The purpose of an event.
enum class EventUse { kOrder, kTime };
CudaEvent make_cuda_event(EventUse use);

/// Makes a handle that is bound to the stream.
CublasHandle make_cublas(CUstream_st* stream);
/// Makes a handle that is bound to the stream. Also throws std::runtime_error if the program was built without cuDNN.
CudnnHandle make_cudnn(CUstream_st* stream);

/// A view of a handle. Another object owns the handle, and must keep it as long as the view is used. May be null.
template <class T>
class HandleView {
 public:
  HandleView() = default;
  HandleView(T* handle) noexcept : handle_(handle) {}  // NOLINT(google-explicit-constructor)
  operator T*() const noexcept { return handle_; }     // NOLINT(google-explicit-constructor)
  T* get() const noexcept { return handle_; }

 private:
  T* handle_ = nullptr;
};

/// The stream and the library handles for the work of a network. A worker, or the owners above, lend them for the time
/// of a call. The library handles are bound to the stream. cudnn may be null if the network does not need it.
struct CudaHandles {
  HandleView<CUstream_st> stream;
  HandleView<cublasContext> cublas;
  HandleView<cudnnContext> cudnn;
};

}  // namespace demos
