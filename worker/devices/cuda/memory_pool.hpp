#pragma once

// Keeps device memory of a call for the next one, because cudaMalloc and cudaFree wait for the device.

#include <cstddef>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace syncrun::detail::worker::devices::cuda {

/// Blocks of a GPU's memory for the work of one stream. A released block may be used again at once, because its next
/// use comes after its last one on the stream.
///
/// Blocks lie in chunks. A chunk is what cudaMalloc has returned, and what a peer maps. Small blocks of one size share a
/// chunk, so that a peer maps a chunk once and not each of its blocks.
class MemoryPool {
 public:
  /// `take_back` is called with a chunk without used blocks before the chunk is returned to the device. If it returns
  /// false, the chunk stays in the pool, because a peer still has it mapped.
  explicit MemoryPool(std::function<bool(void*)> take_back = {}) : take_back_(std::move(take_back)) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns a block of at least `bytes`, aligned to 256 bytes. If the device has no more memory, other allocators of this
  /// process return what they do not use (gpu_allocators.hpp). `what` names the block's purpose in the error. Throws Error
  /// (system, ENOMEM), which says how much was requested and available.
  void* allocate(std::size_t bytes, std::string_view what);
  /// The chunk in which a block lies that allocate() has returned. Null for other memory.
  void* chunk_of(void* memory) const noexcept;
  /// The size of the block that allocate() uses for a size.
  static std::size_t block_bytes(std::size_t bytes) noexcept;
  void release(void* memory) noexcept;
  /// The bytes of the blocks that are not in use.
  std::size_t free_bytes() const noexcept;
  /// The bytes of all chunks.
  std::size_t held_bytes() const noexcept { return held_bytes_; }
  /// Returns chunks without used blocks to the device, except those that a peer has mapped: CUDA does not allow that.
  void trim() noexcept;

 private:
  struct Chunk {
    std::size_t bytes;
    std::size_t used = 0;  // blocks
    bool is_going_back = false;
  };
  struct Block {
    std::size_t bytes;
    void* chunk;
  };
  using FreeBlocks = std::multimap<std::size_t, std::pair<void*, void*>>;  // by size: the block and its chunk
  void* take(FreeBlocks::iterator block);
  void* take_free(std::size_t size);
  bool make_chunk(std::size_t bytes, std::size_t block_bytes);
  [[noreturn]] static void refuse(std::size_t bytes, std::string_view what);

  std::function<bool(void*)> take_back_;
  std::unordered_map<void*, Chunk> chunks_;
  std::size_t held_bytes_ = 0;  // of all chunks
  FreeBlocks free_;
  std::unordered_map<void*, Block> used_;
};

}  // namespace syncrun::detail::worker::devices::cuda
