#pragma once

// Keeps device memory of a call for the next one, because cudaMalloc and cudaFree wait for the device.

#include <cstddef>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace syncrun::detail {

/// Blocks of a GPU's memory for the work of one stream. A released block may be used again at once, because its next
/// use comes after its last one on the stream.
class MemoryPool {
 public:
  MemoryPool() = default;
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns a block of at least `bytes`, aligned to 256 bytes. `what` names its purpose in the error. Throws Error
  /// (system, ENOMEM), which says how much was requested and available.
  void* allocate(std::size_t bytes, std::string_view what);
  /// Whether this is a block that allocate() has returned.
  bool has(void* memory) const noexcept { return used_.contains(memory); }
  /// The size of the block that allocate() uses for a size.
  static std::size_t block_bytes(std::size_t bytes) noexcept;
  void release(void* memory) noexcept;
  /// The bytes of the blocks that are not in use.
  std::size_t free_bytes() const noexcept;
  /// From now on, peers may have mapped this block. It goes back to the device only at the end, because CUDA does not
  /// allow that while a peer has mapped it.
  void note_exported(void* memory) { exported_.insert(memory); }
  /// Returns free blocks to the device, except those that peers may have mapped.
  void trim() noexcept;

 private:
  void* take(std::multimap<std::size_t, void*>::iterator block);

  std::multimap<std::size_t, void*> free_;
  std::unordered_map<void*, std::size_t> used_;
  std::unordered_set<void*> exported_;
};

}  // namespace syncrun::detail
