#include "worker/devices/cuda/peer_copies.hpp"

#include <unistd.h>

#include <algorithm>

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail {

namespace {

/// Makes another GPU current for a while.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { static_cast<void>(cudaSetDevice(before_)); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

void* open(const ExportedMemory& exported) {
  void* memory = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&memory, exported.handle, cudaIpcMemLazyEnablePeerAccess),
             "mapping the memory of a peer's GPU");
  return memory;
}

}  // namespace

std::uint64_t PeerCopies::export_memory(void* memory) {
  if (const auto found = exports_.find(memory); found != exports_.end()) return found->second;
  ExportedMemory exported{.serial = static_cast<std::uint64_t>(getpid()) << 32U | exports_.size(),
                          .device = current_device(),
                          .handle = {}};
  check_cuda(cudaIpcGetMemHandle(&exported.handle, memory), "exporting memory for copies by peers");
  const std::uint64_t offset =
      arena_.allocate(sizeof(ExportedMemory), SharedHeap::Contents::any, "the description of device memory");
  *segment_.at<ExportedMemory>(offset) = exported;
  exports_.emplace(memory, offset);
  return offset;
}

PeerCopies::Mapping& PeerCopies::map(const ExportedMemory& exported) {
  if (const auto found = mappings_.find(exported.serial); found != mappings_.end()) return found->second;
  if (mappings_.size() >= kMostMappings) close_oldest();
  Mapping mapping{.memory = {}, .device = exported.device};
  int can_access = 1;
  const int own = current_device();
  if (own != exported.device) {
    check_cuda(cudaDeviceCanAccessPeer(&can_access, own, exported.device), "cudaDeviceCanAccessPeer");
  }
  mapping.is_direct = can_access != 0;
  if (mapping.is_direct) {
    mapping.memory = MappedGpuMemory(open(exported));
  } else {
    const OnDevice there(exported.device);
    mapping.memory = MappedGpuMemory(open(exported));
  }
  return mappings_.emplace(exported.serial, std::move(mapping)).first->second;
}

void PeerCopies::close_oldest() {
  const auto oldest = std::min_element(mappings_.begin(), mappings_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  mappings_.erase(oldest);
}

void PeerCopies::copy(void* to, std::uint64_t exported, std::size_t bytes, cudaStream_t stream) {
  Mapping& mapping = map(*segment_.at<const ExportedMemory>(exported));
  mapping.last_use = ++uses_;
  const void* const from = mapping.memory.get();
  check_cuda(mapping.is_direct ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
                               : cudaMemcpyPeerAsync(to, current_device(), from, mapping.device, bytes, stream),
             "copying from a peer's GPU");
}

}  // namespace syncrun::detail
