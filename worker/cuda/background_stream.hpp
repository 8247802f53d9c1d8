#pragma once

// A stream beside the worker's. Work that forks off comes after what the worker's stream has so far; what comes after the
// join comes after that work. Both can be captured.

#include <cuda_runtime_api.h>

namespace syncrun::detail {

class BackgroundStream {
 public:
  BackgroundStream() = default;
  ~BackgroundStream();
  BackgroundStream(const BackgroundStream&) = delete;
  BackgroundStream& operator=(const BackgroundStream&) = delete;

  /// The stream, for work that comes after that of `worker`. Made when it is first wanted. Throws Error (cuda).
  cudaStream_t fork(cudaStream_t worker);
  /// Has `worker` come after what forked off, if anything has since the last time. Throws Error (cuda).
  void join(cudaStream_t worker);
  /// Of a call that failed: returns when nothing is left.
  void abandon() noexcept;

  bool is_made() const noexcept { return stream_ != nullptr; }
  bool is(cudaStream_t stream) const noexcept { return is_made() && stream == stream_; }

 private:
  void make();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t forked_ = nullptr;
  cudaEvent_t joined_ = nullptr;
  bool is_ahead_ = false;  // of what the worker's stream waits for
};

}  // namespace syncrun::detail
