#pragma once

// The pages of shared memory that are pinned, so that this worker's GPU can access them directly at bus speed.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

namespace syncrun::detail::worker::devices::cuda {

/// Ranges of host memory that are registered with CUDA. They are registered at the first use, in chunks, and stay
/// registered.
class PinnedPages {
 public:
  PinnedPages() = default;
  ~PinnedPages() { unpin_all(); }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  /// Registers those pages of [memory, memory + bytes) that are not registered yet. Throws Error (cuda).
  void pin(const void* memory, std::size_t bytes);
  /// Divides a pinned range into parts that lie in one registration each, and calls `f(offset, bytes)` for each part.
  /// This is necessary because a copy must not cross from one registration to the next.
  void for_each_part(const void* memory, std::size_t bytes,
                     const std::function<void(std::size_t, std::size_t)>& f) const;
  /// Copies a pinned range to the device, in stream order. Throws Error (cuda).
  void copy_to_device(void* to, const void* memory, std::size_t bytes, cudaStream_t stream) const;
  /// Unregisters all pages. Called before memory is returned to the system.
  void unpin_all() noexcept;

 private:
  std::map<std::uintptr_t, std::uintptr_t> ranges_;  // begin to end
};

}  // namespace syncrun::detail::worker::devices::cuda
