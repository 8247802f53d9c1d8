#include "worker/devices/cuda/memory_pool.hpp"

#include <cuda_runtime_api.h>

#include <cerrno>
#include <string>

#include "syncrun/error.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail {

namespace {

// Sizes of small blocks are powers of two. Sizes of large blocks are multiples of a GPU page. So a block can be used
// again for a slightly different size.
constexpr std::size_t kLeast = 512;
constexpr std::size_t kPage = std::size_t{2} << 20U;

}  // namespace

std::size_t MemoryPool::block_bytes(std::size_t bytes) noexcept {
  if (bytes > kPage) return (bytes + kPage - 1) / kPage * kPage;
  std::size_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

MemoryPool::~MemoryPool() {
  take_back_ = nullptr;  // the workers of the peers end, too
  trim();
  for (const auto& [memory, bytes] : used_) static_cast<void>(cudaFree(memory));
}

void* MemoryPool::allocate(std::size_t bytes, std::string_view what) {
  const std::size_t size = block_bytes(bytes);
  const auto found = free_.lower_bound(size);
  if (found != free_.end() && found->first <= 2 * size) return take(found);
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, size);
  if (code == cudaErrorMemoryAllocation && !free_.empty()) {
    static_cast<void>(cudaGetLastError());
    trim();
    code = cudaMalloc(&memory, size);
  }
  if (code == cudaErrorMemoryAllocation) {
    // A block that cannot be returned to the device, however large.
    if (const auto larger = free_.lower_bound(size); larger != free_.end()) {
      static_cast<void>(cudaGetLastError());
      return take(larger);
    }
  }
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    std::size_t available = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&available, &total));
    throw Error(ErrorKind::system,
                std::string(what) + " requires " + std::to_string(bytes) + " bytes of GPU memory; " +
                    std::to_string(available) + " of " + std::to_string(total) + " are available",
                ENOMEM);
  }
  check_cuda(code, "cudaMalloc");
  used_.emplace(memory, size);
  return memory;
}

void* MemoryPool::take(std::multimap<std::size_t, void*>::iterator block) {
  void* const memory = block->second;
  used_.emplace(memory, block->first);
  free_.erase(block);
  return memory;
}

void MemoryPool::release(void* memory) noexcept {
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  free_.emplace(found->second, found->first);
  used_.erase(found);
}

std::size_t MemoryPool::free_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& block : free_) bytes += block.first;
  return bytes;
}

void MemoryPool::trim() noexcept {
  std::erase_if(free_, [this](const auto& block) {
    if (take_back_ && !take_back_(block.second)) return false;
    static_cast<void>(cudaFree(block.second));
    return true;
  });
}

}  // namespace syncrun::detail
