#pragma once

// Measures a sequence of work with the clock of the device. The sequence may run on a stream or be captured into a
// graph.

#include <cuda_runtime_api.h>

#include "bench/comparators/gpu_owners.hpp"

namespace comparators {

class GpuTimer {
 public:
  void begin(cudaStream_t stream) { record(begin_.get(), stream); }
  void end(cudaStream_t stream) { record(end_.get(), stream); }

  /// Waits for the end of the sequence, and returns its time.
  double elapsed_us() {
    check_cuda(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  /// During a capture, an event becomes a node of the graph only if it is external. Outside a capture, external is an
  /// error.
  static void record(cudaEvent_t event, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &status));
    const bool is_captured = status != cudaStreamCaptureStatusNone;
    check_cuda(cudaEventRecordWithFlags(event, stream, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
  }

  GpuEvent begin_;
  GpuEvent end_;
};

}  // namespace comparators
