#pragma once

// Device memory that comes and goes with calls, kept for the next one: cudaMalloc and cudaFree wait for the device.

#include <cstddef>
#include <map>
#include <string_view>
#include <unordered_map>

namespace syncrun::detail {

/// Blocks of a GPU's memory for the work of one stream: a block that was given back may be handed out again at once,
/// since what uses it next is behind what used it last.
class MemoryPool {
 public:
  MemoryPool() = default;
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// At least `bytes`, aligned to 256. Throws Error (system, ENOMEM) that says how much was wanted and there was.
  void* allocate(std::size_t bytes, std::string_view what);
  /// What allocate() makes of a size.
  static std::size_t block_bytes(std::size_t bytes) noexcept;
  void release(void* memory) noexcept;
  /// Gives free blocks back to the device.
  void trim() noexcept;

 private:
  std::multimap<std::size_t, void*> free_;
  std::unordered_map<void*, std::size_t> used_;
};

}  // namespace syncrun::detail
