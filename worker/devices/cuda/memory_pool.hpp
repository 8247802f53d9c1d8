#pragma once

// Keeps device memory of a call for the next one, because cudaMalloc and cudaFree wait for the device.

#include <cstddef>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace syncrun::detail {

/// Blocks of a GPU's memory for the work of one stream. A released block may be used again at once, because its next
/// use comes after its last one on the stream.
class MemoryPool {
 public:
  /// `take_back` is called with a free block before the block is returned to the device. If it returns false, the block
  /// stays in the pool, because a peer still has it mapped.
  explicit MemoryPool(std::function<bool(void*)> take_back = {}) : take_back_(std::move(take_back)) {}
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
  /// Returns free blocks to the device, except those that a peer has mapped: CUDA does not allow that.
  void trim() noexcept;

 private:
  void* take(std::multimap<std::size_t, void*>::iterator block);

  std::function<bool(void*)> take_back_;
  std::multimap<std::size_t, void*> free_;
  std::unordered_map<void*, std::size_t> used_;
};

}  // namespace syncrun::detail
