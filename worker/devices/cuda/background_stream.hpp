#pragma once

// A second stream beside the worker's stream. Work that is put on it after a fork comes after all earlier work of the
// worker's stream. Work of the worker's stream after a join comes after that work. Both can be captured.

#include <cuda_runtime_api.h>

#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail::worker::devices::cuda {

class BackgroundStream {
 public:
  /// Returns the stream, ordered after the work that `worker` has so far. Makes the stream at the first call. Throws
  /// Error (cuda).
  cudaStream_t fork(cudaStream_t worker);
  /// Orders the next work of `worker` after the work of this stream, if there was a fork since the last join. Throws
  /// Error (cuda).
  void join(cudaStream_t worker);
  /// Called after a call failed. Returns when no work is left on the stream.
  void abandon() noexcept;

  bool is_made() const noexcept { return static_cast<bool>(stream_); }
  bool is(cudaStream_t stream) const noexcept { return is_made() && stream == stream_.get(); }

 private:
  void make();

  Stream stream_;
  Event forked_;
  Event joined_;
  bool is_ahead_ = false;  // has work that the worker's stream does not wait for yet
};

}  // namespace syncrun::detail::worker::devices::cuda
