#pragma once

// The two allocators of one GPU's memory in a worker: Syncrun's pool, and that of a library that bodies use, such as
// LibTorch. Both keep memory that they do not use. If one finds no more, the other returns what it keeps. A limit is for
// both together.

#include <cstddef>
#include <functional>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::os {

/// One of the two, as the other one sees it. All functions are called on the worker's thread, or while this thread waits.
struct GpuAllocator {
  std::function<std::size_t()> held_bytes;    // what it has from the device, in use or not
  std::function<std::size_t()> unused_bytes;  // those of them that are not in use; only Syncrun's has it
  std::function<void()> give_back;            // returns what is not in use to the device, as far as possible
};

struct GpuAllocators {
  GpuAllocator syncrun;
  GpuAllocator library;         // without functions if no library has registered
  std::size_t limit_bytes = 0;  // for both together; 0: no limit but the device's memory
  bool is_capturing = false;    // work is being captured, so nothing can be returned to the device

  std::size_t held_bytes() const {
    return (syncrun.held_bytes ? syncrun.held_bytes() : 0) + (library.held_bytes ? library.held_bytes() : 0);
  }
  /// Whether the limit allows this many more bytes.
  bool allow(std::size_t bytes) const { return limit_bytes == 0 || held_bytes() + bytes <= limit_bytes; }
};

/// Those of this process.
SYNCRUN_EXPORT_FOR_CUDA GpuAllocators& gpu_allocators() noexcept;

/// The limit in bytes for a device with `total` bytes, from the text of SYNCRUN_GPU_MEMORY_FRACTION. 0 without a text. Throws
/// Error (usage) unless the text is a number above 0 and at most 1.
SYNCRUN_EXPORT_FOR_CUDA std::size_t gpu_limit_bytes(const char* text, std::size_t total);

}  // namespace syncrun::detail::os
