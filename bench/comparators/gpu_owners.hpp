#pragma once

// Owners of CUDA streams, events and graphs. Each has a move-only type.

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace comparators {

/// Throws std::runtime_error with the place of the call if `code` is an error.
inline void check_cuda(cudaError_t code, std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string(cudaGetErrorString(code)) + " at " + where.file_name() + ":" +
                           std::to_string(where.line()));
}

template <class Handle, auto kEnd>
class GpuOwner {
 public:
  GpuOwner() = default;
  explicit GpuOwner(Handle handle) noexcept : handle_(handle) {}
  GpuOwner(GpuOwner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  GpuOwner& operator=(GpuOwner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~GpuOwner() {
    if (handle_ != nullptr) static_cast<void>(kEnd(handle_));
  }
  Handle get() const noexcept { return handle_; }

 private:
  Handle handle_ = nullptr;
};

class GpuStream : public GpuOwner<cudaStream_t, cudaStreamDestroy> {
 public:
  GpuStream() : GpuOwner(make()) {}

 private:
  static cudaStream_t make() {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
};

/// An event that records a time.
class GpuEvent : public GpuOwner<cudaEvent_t, cudaEventDestroy> {
 public:
  GpuEvent() : GpuOwner(make()) {}

 private:
  static cudaEvent_t make() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault));
    return event;
  }
};

/// An executable graph. The constructor makes it from a captured graph, and destroys the captured graph.
class GpuGraph : public GpuOwner<cudaGraphExec_t, cudaGraphExecDestroy> {
 public:
  explicit GpuGraph(cudaGraph_t captured) : GpuOwner(make(captured)) {}
  void launch(cudaStream_t stream) const { check_cuda(cudaGraphLaunch(get(), stream)); }

 private:
  static cudaGraphExec_t make(cudaGraph_t captured) {
    cudaGraphExec_t made = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&made, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    check_cuda(code);
    return made;
  }
};

}  // namespace comparators
