#pragma once

// The device's own clock around a sequence of work, whether the sequence is put on a stream or captured into a graph.

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace comparators {

class GpuTimer {
 public:
  GpuTimer() {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~GpuTimer() {
    if (begin_ != nullptr) static_cast<void>(cudaEventDestroy(begin_));
    if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
  }
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  void begin(cudaStream_t stream) { record(begin_, stream); }
  void end(cudaStream_t stream) { record(end_, stream); }

  /// Waits for the end.
  double elapsed_us() {
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  static void check(cudaError_t code, std::source_location where = std::source_location::current()) {
    if (code == cudaSuccess) return;
    throw std::runtime_error(std::string(cudaGetErrorString(code)) + " at " + where.file_name() + ":" +
                             std::to_string(where.line()));
  }

  /// In a capture an event is a node of the graph only if it is external; outside of one, external is an error.
  static void record(cudaEvent_t event, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &status));
    const bool is_captured = status != cudaStreamCaptureStatusNone;
    check(cudaEventRecordWithFlags(event, stream, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
  }

  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace comparators
