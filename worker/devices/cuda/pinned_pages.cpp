#include "worker/devices/cuda/pinned_pages.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

constexpr std::uintptr_t kPinnedPage = 4096;
constexpr std::uintptr_t kChunk = std::uintptr_t{1} << 30U;

}  // namespace

void PinnedPages::pin(const void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(memory) / kPinnedPage * kPinnedPage;
  const std::uintptr_t end =
      (reinterpret_cast<std::uintptr_t>(memory) + bytes + kPinnedPage - 1) / kPinnedPage * kPinnedPage;
  auto next = ranges_.upper_bound(at);
  if (next != ranges_.begin()) at = std::max(at, std::prev(next)->second);
  while (at < end) {
    const std::uintptr_t stop = std::min({end, next == ranges_.end() ? end : next->first, at + kChunk});
    if (stop > at) {
      check_cuda(
          cudaHostRegister(reinterpret_cast<void*>(at), stop - at, cudaHostRegisterPortable | cudaHostRegisterMapped),
          "cudaHostRegister of shared memory");
      ranges_.emplace(at, stop);
      at = stop;
    }
    if (next != ranges_.end() && at == next->first) at = (next++)->second;
  }
}

void PinnedPages::for_each_part(const void* memory, std::size_t bytes,
                                const std::function<void(std::size_t, std::size_t)>& f) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t end = begin + bytes;
  std::uintptr_t at = begin;
  for (auto range = std::prev(ranges_.upper_bound(at)); at < end; ++range) {
    const std::uintptr_t stop = std::min(end, range->second);
    f(at - begin, stop - at);
    at = stop;
  }
}

void PinnedPages::copy_to_device(void* to, const void* memory, std::size_t bytes, cudaStream_t stream) const {
  for_each_part(memory, bytes, [&](std::size_t offset, std::size_t part) {
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + offset, static_cast<const std::byte*>(memory) + offset,
                               part, cudaMemcpyHostToDevice, stream),
               "copying shared memory to the device");
  });
}

void PinnedPages::unpin_all() noexcept {
  for (const auto& [begin, end] : ranges_) static_cast<void>(cudaHostUnregister(reinterpret_cast<void*>(begin)));
  ranges_.clear();
}

}  // namespace syncrun::detail::worker::devices::cuda
