#include "worker/devices/cuda/peer_copies.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

/// How often a worker that copies looks for memory that its peers want back.
constexpr std::uint64_t kCopiesPerLook = 64;

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

/// Maps the memory for this GPU. Returns nothing if CUDA refuses because this GPU reaches as many others as it can (eight,
/// if they are on a bus).
MappedGpuMemory open_directly(const ExportedMemory& exported) {
  void* memory = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&memory, exported.handle, cudaIpcMemLazyEnablePeerAccess);
  if (code != cudaErrorTooManyPeers) check_cuda(code, "mapping the memory of a peer's GPU");
  static_cast<void>(cudaGetLastError());
  return MappedGpuMemory(memory);
}

/// Maps the memory for its own GPU. Requires a context there.
MappedGpuMemory open_there(const ExportedMemory& exported) {
  const OnDevice there(exported.device);
  void* memory = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&memory, exported.handle, cudaIpcMemLazyEnablePeerAccess),
             "mapping the memory of a peer's GPU");
  return MappedGpuMemory(memory);
}

}  // namespace

// ---- the worker whose memory it is ----------------------------------------------------------------------------

ExportUser* PeerCopies::users_of(std::uint64_t exported) const noexcept {
  return segment_.at<ExportUser>(exported + sizeof(ExportedMemory));
}

std::uint64_t PeerCopies::export_memory(void* memory) {
  if (const auto found = exports_.find(memory); found != exports_.end()) return found->second;
  cudaIpcMemHandle_t handle{};
  if (cudaIpcGetMemHandle(&handle, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  const int world_size = control_.world_size();
  const std::size_t bytes = sizeof(ExportedMemory) + sizeof(ExportUser) * static_cast<std::size_t>(world_size);
  const std::uint64_t offset =
      arena_.allocate(bytes, os::SharedHeap::Contents::any, "the description of device memory");
  const std::uint64_t serial = static_cast<std::uint64_t>(getpid()) << 32U | exports_made_++;
  new (segment_.at<ExportedMemory>(offset))
      ExportedMemory{serial, current_device(), handle, reinterpret_cast<std::uint64_t>(memory), false};
  for (int rank = 0; rank < world_size; ++rank) new (users_of(offset) + rank) ExportUser(0);
  exports_.emplace(memory, offset);
  return offset;
}

/// A process that has ended has no mapping. Its number may belong to another process by then, but not to one that has the
/// same rank.
bool PeerCopies::is_mapped(std::uint64_t exported) const noexcept {
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const pid_t pid = users_of(exported)[rank].load(std::memory_order_seq_cst);
    if (pid == 0 || pid != control_.worker(rank).pid.load(std::memory_order_seq_cst)) continue;
    if (::kill(pid, 0) == 0 || errno != ESRCH) return true;
  }
  return false;
}

bool PeerCopies::take_back(void* memory) noexcept {
  const auto found = exports_.find(memory);
  if (found == exports_.end()) return true;
  if (is_mapped(found->second)) {
    segment_.at<ExportedMemory>(found->second)->is_wanted_back.store(true, std::memory_order_relaxed);
    return false;
  }
  arena_.free(found->second, os::SharedHeap::Giveback::later);
  exports_.erase(found);
  return true;
}

// ---- the worker that copies -----------------------------------------------------------------------------------

PeerCopies::Mapping& PeerCopies::map(const PeerMemoryPlace& from) {
  ExportedMemory& what = *segment_.at<ExportedMemory>(from.exported);
  what.is_wanted_back.store(false, std::memory_order_relaxed);  // a variable uses the memory again
  if (const auto found = mappings_.find(what.serial); found != mappings_.end()) return found->second;
  close_those_wanted_back();
  if (mappings_.size() >= kMostMappings) close_oldest();
  Mapping mapping{.memory = {},
                  .rank = from.rank,
                  .predecessors = control_.worker(from.rank).predecessors,
                  .exported = from.exported,
                  .device = what.device};
  int can_access = 1;
  const int own = current_device();
  if (own != what.device) {
    check_cuda(cudaDeviceCanAccessPeer(&can_access, own, what.device), "cudaDeviceCanAccessPeer");
  }
  ExportUser& user = users_of(from.exported)[rank_];
  user.store(getpid(), std::memory_order_seq_cst);
  try {
    if (can_access != 0) mapping.memory = open_directly(what);
    mapping.is_direct = static_cast<bool>(mapping.memory);
    if (!mapping.is_direct) mapping.memory = open_there(what);
  } catch (const Error&) {
    user.store(0, std::memory_order_seq_cst);
    throw;
  }
  return mappings_.emplace(what.serial, std::move(mapping)).first->second;
}

/// The memory must be unmapped before the peer may learn of it.
void PeerCopies::close(Mapping& mapping) noexcept {
  mapping.memory.reset();
  users_of(mapping.exported)[rank_].store(0, std::memory_order_seq_cst);
}

void PeerCopies::close_oldest() {
  const auto oldest = std::min_element(mappings_.begin(), mappings_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  close(oldest->second);
  mappings_.erase(oldest);
}

void PeerCopies::return_memory() {
  if (uses_ - looked_at_ < kCopiesPerLook) return;
  looked_at_ = uses_;
  close_those_wanted_back();
}

void PeerCopies::close_those_wanted_back() {
  for (auto at = mappings_.begin(); at != mappings_.end();) {
    const auto next = std::next(at);
    if (segment_.at<ExportedMemory>(at->second.exported)->is_wanted_back.load(std::memory_order_relaxed)) {
      close(at->second);
      mappings_.erase(at);
    }
    at = next;
  }
}

void PeerCopies::forget_replaced() noexcept {
  std::erase_if(mappings_, [this](const auto& known) {
    return control_.worker(known.second.rank).predecessors != known.second.predecessors;
  });
}

void PeerCopies::copy(void* to, const PeerMemoryPlace& from, std::size_t bytes, cudaStream_t stream) {
  Mapping& mapping = map(from);
  mapping.last_use = ++uses_;
  const std::uint64_t offset = from.place - segment_.at<const ExportedMemory>(from.exported)->address;
  const void* const source = static_cast<const std::byte*>(mapping.memory.get()) + offset;
  check_cuda(mapping.is_direct ? cudaMemcpyAsync(to, source, bytes, cudaMemcpyDeviceToDevice, stream)
                               : cudaMemcpyPeerAsync(to, current_device(), source, mapping.device, bytes, stream),
             "copying from a peer's GPU");
}

}  // namespace syncrun::detail::worker::devices::cuda
