#pragma once

// The owners of what CUDA and its libraries hand out: streams, events, graphs, handles, communicators, memory. One
// move-only type for each. A class that has such a thing has an owner as a member, or a StreamView of somebody else's.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <utility>

struct cudnnContext;  // cudnnHandle_t is a cudnnContext*

namespace syncrun::detail {

/// The one owner of a handle, or of nothing. Ends it with `kEnd`, whose return code is of no use to a destructor.
template <class Handle, auto kEnd>
class CudaOwner {
 public:
  CudaOwner() = default;
  /// Takes over what CUDA has just made.
  explicit CudaOwner(Handle handle) noexcept : handle_(handle) {}
  CudaOwner(CudaOwner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaOwner& operator=(CudaOwner&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~CudaOwner() { reset(); }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  void reset() noexcept {
    if (handle_ != nullptr) static_cast<void>(kEnd(std::exchange(handle_, nullptr)));
  }

 private:
  Handle handle_ = nullptr;
};

/// See CudnnHandle::make.
int end_cudnn(cudnnContext* handle) noexcept;

/// A stream that does not wait for the default stream.
class Stream : public CudaOwner<cudaStream_t, cudaStreamDestroy> {
 public:
  using CudaOwner::CudaOwner;
  /// Throws Error (cuda), as all make() here.
  static Stream make();
  static Stream make(int priority);
};

/// What priorities streams of this GPU can have: lower numbers come first.
struct StreamPriorities {
  int least = 0;
  int most = 0;
};
StreamPriorities stream_priorities();

/// A stream that another object owns and keeps for as long as this is used.
class StreamView {
 public:
  StreamView() = default;
  StreamView(cudaStream_t stream) noexcept : stream_(stream) {}         // NOLINT(google-explicit-constructor)
  StreamView(const Stream& stream) noexcept : stream_(stream.get()) {}  // NOLINT(google-explicit-constructor)
  operator cudaStream_t() const noexcept { return stream_; }            // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event without a time, which orders streams.
class Event : public CudaOwner<cudaEvent_t, cudaEventDestroy> {
 public:
  using CudaOwner::CudaOwner;
  static Event make();
};

/// What was captured.
class Graph : public CudaOwner<cudaGraph_t, cudaGraphDestroy> {
 public:
  using CudaOwner::CudaOwner;
};

/// A graph that can be launched.
class GraphExec : public CudaOwner<cudaGraphExec_t, cudaGraphExecDestroy> {
 public:
  using CudaOwner::CudaOwner;
};

class CublasHandle : public CudaOwner<cublasHandle_t, cublasDestroy> {
 public:
  using CudaOwner::CudaOwner;
  static CublasHandle make();
};

class CudnnHandle : public CudaOwner<cudnnContext*, end_cudnn> {
 public:
  using CudaOwner::CudaOwner;
  /// Bound to the stream. Throws Error (cuda) also where this Syncrun was built without cuDNN.
  static CudnnHandle make(StreamView stream);
};

/// A communicator. Its end is an abort, always: a destroy would wait for peers that may be gone.
class Communicator : public CudaOwner<ncclComm_t, ncclCommAbort> {
 public:
  using CudaOwner::CudaOwner;
};

/// Memory of this GPU's.
class DeviceMemory : public CudaOwner<void*, cudaFree> {
 public:
  using CudaOwner::CudaOwner;
};

/// Memory of another process's GPU, mapped.
class MappedDeviceMemory : public CudaOwner<void*, cudaIpcCloseMemHandle> {
 public:
  using CudaOwner::CudaOwner;
};

/// Pinned memory of the host's.
class PinnedMemory : public CudaOwner<void*, cudaFreeHost> {
 public:
  using CudaOwner::CudaOwner;
  /// `what` is for the error: "cudaHostAlloc for rows of a file".
  static PinnedMemory make(std::size_t bytes, const char* what);
};

/// Pages of the host's that are registered with CUDA; the memory is somebody else's.
class RegisteredPages : public CudaOwner<void*, cudaHostUnregister> {
 public:
  using CudaOwner::CudaOwner;
};

}  // namespace syncrun::detail
