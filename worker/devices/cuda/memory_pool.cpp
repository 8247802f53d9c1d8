#include "worker/devices/cuda/memory_pool.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>

#include "common/os/environment.hpp"
#include "common/os/gpu_allocators.hpp"
#include "syncrun/error.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

// Sizes of small blocks are powers of two, so they divide a chunk. Sizes of large blocks are multiples of a chunk. So a
// block can be used again for a slightly different size.
constexpr std::size_t kLeast = 512;
constexpr std::size_t kLeastChunk = std::size_t{2} << 20U;  // a GPU page, the least that cudaMalloc reserves

}  // namespace

std::size_t MemoryPool::block_bytes(std::size_t bytes) noexcept {
  if (bytes > kLeastChunk) return (bytes + kLeastChunk - 1) / kLeastChunk * kLeastChunk;
  std::size_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

MemoryPool::~MemoryPool() {
  for (const auto& [chunk, blocks] : chunks_) static_cast<void>(cudaFree(chunk));  // the workers of the peers end, too
}

void* MemoryPool::allocate(std::size_t bytes, std::string_view what) {
  const std::size_t size = block_bytes(bytes);
  if (void* const memory = take_free(size); memory != nullptr) return memory;
  const std::size_t chunk_bytes = std::max(size, kLeastChunk);
  bool is_made = make_chunk(chunk_bytes, size);
  if (!is_made && !free_.empty()) {
    trim();
    is_made = make_chunk(chunk_bytes, size);
  }
  const os::GpuAllocators& allocators = os::gpu_allocators();
  if (!is_made && allocators.library.give_back && !allocators.is_capturing) {
    allocators.library.give_back();
    is_made = make_chunk(chunk_bytes, size);
  }
  if (is_made) return take_free(size);
  // A block that cannot be returned to the device, however large.
  if (const auto larger = free_.lower_bound(size); larger != free_.end()) return take(larger);
  refuse(bytes, what);
}

void MemoryPool::refuse(std::size_t bytes, std::string_view what) {
  std::size_t available = 0;
  std::size_t total = 0;
  static_cast<void>(cudaMemGetInfo(&available, &total));
  std::string message = std::string(what) + " requires " + std::to_string(bytes) + " bytes of GPU memory; " +
                        std::to_string(available) + " of " + std::to_string(total) + " are available";
  const os::GpuAllocators& allocators = os::gpu_allocators();
  if (allocators.limit_bytes != 0) {
    message += ", and this worker has " + std::to_string(allocators.held_bytes()) + " of the " +
               std::to_string(allocators.limit_bytes) + " that " + environment::kGpuMemoryFraction + " allows";
  }
  throw Error(ErrorKind::system, message, ENOMEM);
}

/// Takes a chunk from the device and divides it into free blocks. Returns false if there is too little memory.
bool MemoryPool::make_chunk(std::size_t bytes, std::size_t block_bytes) {
  if (!os::gpu_allocators().allow(bytes)) return false;
  void* chunk = nullptr;
  const cudaError_t code = cudaMalloc(&chunk, bytes);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(code, "cudaMalloc");
  chunks_.emplace(chunk, Chunk{.bytes = bytes});
  held_bytes_ += bytes;
  for (std::size_t block = bytes / block_bytes; block-- > 0;) {  // the first one is taken first
    free_.emplace(block_bytes, std::pair(static_cast<std::byte*>(chunk) + block * block_bytes, chunk));
  }
  return true;
}

/// Null if no free block has a suitable size. Among blocks of the same size, the one that was released last is taken: it
/// is the most likely to be in caches.
void* MemoryPool::take_free(std::size_t size) {
  const auto found = free_.lower_bound(size);
  if (found == free_.end() || found->first > 2 * size) return nullptr;
  return take(std::prev(free_.upper_bound(found->first)));
}

void* MemoryPool::take(FreeBlocks::iterator block) {
  const auto [memory, chunk] = block->second;
  used_.emplace(memory, Block{block->first, chunk});
  ++chunks_.at(chunk).used;
  free_.erase(block);
  return memory;
}

void* MemoryPool::chunk_of(void* memory) const noexcept {
  const auto found = used_.find(memory);
  return found == used_.end() ? nullptr : found->second.chunk;
}

void MemoryPool::release(void* memory) noexcept {
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  const Block block = found->second;
  used_.erase(found);
  free_.emplace(block.bytes, std::pair(memory, block.chunk));
  --chunks_.at(block.chunk).used;
}

std::size_t MemoryPool::free_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& block : free_) bytes += block.first;
  return bytes;
}

void MemoryPool::trim() noexcept {
  for (auto& [chunk, state] : chunks_) state.is_going_back = state.used == 0 && (!take_back_ || take_back_(chunk));
  std::erase_if(free_, [this](const auto& block) { return chunks_.at(block.second.second).is_going_back; });
  std::erase_if(chunks_, [this](const auto& chunk) {
    if (!chunk.second.is_going_back) return false;
    static_cast<void>(cudaFree(chunk.first));
    held_bytes_ -= chunk.second.bytes;
    return true;
  });
}

}  // namespace syncrun::detail::worker::devices::cuda
