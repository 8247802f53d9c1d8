#pragma once

// A second stream beside the worker's stream. Work that is put on it after a fork comes after all earlier work of the
// worker's stream. Work of the worker's stream after a join comes after that work. Both can be captured.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

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
  /// Marks the end of the work that the stream has so far. Returns the number of the mark. Throws Error (cuda).
  std::uint64_t mark();
  /// Orders the next work of `worker` after a mark. Throws Error (cuda).
  void join(std::uint64_t mark, cudaStream_t worker);
  /// Called after a call failed. Returns when no work is left on the stream.
  void abandon() noexcept;

  bool is_made() const noexcept { return static_cast<bool>(stream_); }
  bool is(cudaStream_t stream) const noexcept { return is_made() && stream == stream_.get(); }

 private:
  void make();

  Stream stream_;
  Event forked_;
  Event joined_;
  /// Eight marks share them in turn. So a join with an old mark may wait for a later one, which is safe.
  std::array<Event, 8> marks_;
  std::uint64_t mark_count_ = 0;
  bool is_ahead_ = false;  // has work that the worker's stream does not wait for yet
};

}  // namespace syncrun::detail::worker::devices::cuda
