#pragma once

// Which pages of shared memory this worker's GPU can reach by itself, at bus speed.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

namespace syncrun::detail {

/// Ranges of host memory that are registered with CUDA. Registered at the first use, in chunks, and kept.
class PinnedPages {
 public:
  PinnedPages() = default;
  ~PinnedPages() { unpin_all(); }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  /// Registers the pages of [memory, memory + bytes) that are not yet. Throws Error (cuda).
  void pin(const void* memory, std::size_t bytes);
  /// Calls `f(offset, bytes)` for the parts of a pinned range that lie in one registration each: a copy may not cross
  /// from one to the next.
  void for_each_part(const void* memory, std::size_t bytes,
                     const std::function<void(std::size_t, std::size_t)>& f) const;
  /// Copies a pinned range to the device, in stream order. Throws Error (cuda).
  void copy_to_device(void* to, const void* memory, std::size_t bytes, cudaStream_t stream) const;
  /// Before memory is given back to the system.
  void unpin_all() noexcept;

 private:
  std::map<std::uintptr_t, std::uintptr_t> ranges_;  // begin to end
};

}  // namespace syncrun::detail
