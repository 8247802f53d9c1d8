#pragma once

// The owners of the objects that CUDA and its libraries make: streams, events, graphs, handles, communicators, memory.
// There is one move-only type for each. A class that uses such an object has an owner as a member, or a StreamView of a
// stream that another object owns.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <utility>

struct cudnnContext;  // cudnnHandle_t is a cudnnContext*

namespace syncrun::detail::worker::devices::cuda {

/// The only owner of a handle; may be empty. Its destructor calls `kEnd` and ignores the return code.
template <class Handle, auto kEnd>
class CudaOwner {
 public:
  CudaOwner() = default;
  /// Takes ownership of a handle that CUDA has just made.
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

/// Destroys a handle of cuDNN; does nothing without cuDNN. See CudnnHandle::make.
int end_cudnn(cudnnContext* handle) noexcept;

/// A stream that does not wait for the default stream.
class Stream : public CudaOwner<cudaStream_t, cudaStreamDestroy> {
 public:
  using CudaOwner::CudaOwner;
  /// Throws Error (cuda). This holds for all make() functions here.
  static Stream make();
  static Stream make(int priority);
};

/// The range of priorities of streams on this GPU. Lower numbers have higher priority.
struct StreamPriorities {
  int least = 0;
  int most = 0;
};
StreamPriorities stream_priorities();

/// A stream that another object owns. The owner must keep it as long as the view is used.
class StreamView {
 public:
  StreamView() = default;
  StreamView(cudaStream_t stream) noexcept : stream_(stream) {}         // NOLINT(google-explicit-constructor)
  StreamView(const Stream& stream) noexcept : stream_(stream.get()) {}  // NOLINT(google-explicit-constructor)
  operator cudaStream_t() const noexcept { return stream_; }            // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event without timing, for the order of streams.
class Event : public CudaOwner<cudaEvent_t, cudaEventDestroy> {
 public:
  using CudaOwner::CudaOwner;
  static Event make();
};

/// A captured graph.
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
  /// Makes a handle that is bound to the stream. Throws Error (cuda), also if this Syncrun was built without cuDNN.
  static CudnnHandle make(StreamView stream);
};

/// A communicator. It always ends with an abort, because a destroy would wait for peers that may have died.
class Communicator : public CudaOwner<ncclComm_t, ncclCommAbort> {
 public:
  using CudaOwner::CudaOwner;
};

/// Memory of this GPU.
class GpuMemory : public CudaOwner<void*, cudaFree> {
 public:
  using CudaOwner::CudaOwner;
};

/// Mapped memory of another process's GPU.
class MappedGpuMemory : public CudaOwner<void*, cudaIpcCloseMemHandle> {
 public:
  using CudaOwner::CudaOwner;
};

/// Pinned host memory.
class PinnedMemory : public CudaOwner<void*, cudaFreeHost> {
 public:
  using CudaOwner::CudaOwner;
  /// `what` is for the error, for example "cudaHostAlloc for rows of a file".
  static PinnedMemory make(std::size_t bytes, const char* what);
};

/// Pages of host memory that are registered with CUDA. Another object owns the memory.
class RegisteredPages : public CudaOwner<void*, cudaHostUnregister> {
 public:
  using CudaOwner::CudaOwner;
};

}  // namespace syncrun::detail::worker::devices::cuda
