#pragma once

// A stream beside the worker's. Work that forks off comes after what the worker's stream has so far; what comes after the
// join comes after that work. Both can be captured.

#include <cuda_runtime_api.h>

#include "worker/cuda/owners.hpp"

namespace syncrun::detail {

class BackgroundStream {
 public:
  /// The stream, for work that comes after that of `worker`. Made when it is first wanted. Throws Error (cuda).
  cudaStream_t fork(cudaStream_t worker);
  /// Has `worker` come after what forked off, if anything has since the last time. Throws Error (cuda).
  void join(cudaStream_t worker);
  /// Of a call that failed: returns when nothing is left.
  void abandon() noexcept;

  bool is_made() const noexcept { return static_cast<bool>(stream_); }
  bool is(cudaStream_t stream) const noexcept { return is_made() && stream == stream_.get(); }

 private:
  void make();

  Stream stream_;
  Event forked_;
  Event joined_;
  bool is_ahead_ = false;  // of what the worker's stream waits for
};

}  // namespace syncrun::detail
