#pragma once

// Copies from the memory of other GPUs, without their help. The worker of the other GPU has exported the memory before.
// This worker maps it once, and then its copy engines read it.
//
//   exported --copy() of a peer--> mapped by the peer --take_back() asks for it, a later copy() of the peer--> exported
//   exported --take_back()--> not exported
//
// A worker takes memory back only when no variable uses it any more, so no peer is about to copy from it.
//
// If the worker that has exported the memory is lost, the memory stays on the device as long as a peer has mapped it. So
// peers unmap it when the worker is replaced. The new worker uses the arena of the lost one: where the description of the
// memory was, there may be anything by then.

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "common/protocol/control_block.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// Memory that a worker has exported. In the worker's arena, followed by one ExportUser per rank.
struct ExportedMemory {
  std::uint64_t serial;  // differs from those of all other exports of the session
  int device;            // its number is the same in all processes of the session
  cudaIpcMemHandle_t handle;
  std::uint64_t address;  // in the worker that has exported it
  std::atomic<bool> is_wanted_back;
};
/// The process of the rank that has mapped the memory, or 0.
using ExportUser = std::atomic<pid_t>;

class PeerCopies {
 public:
  /// The arena is this worker's. All of them outlive this object.
  PeerCopies(const os::Segment& segment, const protocol::ControlBlock& control, os::SharedHeap& arena,
             int rank) noexcept
      : segment_(segment), control_(control), arena_(arena), rank_(rank) {}

  /// Exports memory that cudaMalloc has returned. The memory must not be freed before it was taken back. Returns the
  /// offset of the ExportedMemory: the same one for the same memory. Returns 0 if CUDA cannot export memory here. Throws
  /// Error (cuda, system).
  std::uint64_t export_memory(void* memory);
  /// Ends the export of memory that no variable uses. Returns false if a peer has mapped it. Then the peer unmaps it
  /// when it later copies something.
  bool take_back(void* memory) noexcept;

  /// Puts a copy from a peer's memory on the stream. `from.exported` is what the peer's export_memory has returned, and
  /// `from.place` an address in this memory, as the peer knows it. Maps the memory at the first copy from it. If this GPU
  /// cannot reach the memory, CUDA copies through host memory. If it maps memory, all earlier copies must be complete.
  /// Throws Error (cuda).
  void copy(void* to, const PeerMemoryPlace& from, std::size_t bytes, cudaStream_t stream);

  /// From time to time, unmaps memory that its worker wants back. All earlier copies must be complete. May wait for the
  /// device.
  void return_memory();
  /// Unmaps the memory of lost workers that were replaced since it was mapped. All copies must be complete. May wait for
  /// the device.
  void forget_replaced() noexcept;
  /// Whether copy() would not have to map this memory. Otherwise it may wait for the device.
  bool has_mapped(std::uint64_t exported) const noexcept {
    return mappings_.contains(segment_.at<const ExportedMemory>(exported)->serial);
  }
  std::size_t mappings() const noexcept { return mappings_.size(); }
  /// The number of mappings that stay open. The ones that have not been used for the longest time are closed.
  static constexpr std::size_t kMostMappings = 512;

 private:
  struct Mapping {
    MappedGpuMemory memory;
    int rank = 0;                // whose memory it is
    int predecessors = 0;        // of the worker that had the rank when the memory was mapped
    std::uint64_t exported = 0;  // offset of the ExportedMemory
    int device = 0;
    bool is_direct = true;  // this GPU can read the memory
    std::uint64_t last_use = 0;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;
  ExportUser* users_of(std::uint64_t exported) const noexcept;
  bool is_mapped(std::uint64_t exported) const noexcept;
  Mapping& map(const PeerMemoryPlace& from);
  void close_oldest();
  void close_those_wanted_back();
  void close(Mapping& mapping) noexcept;

  const os::Segment& segment_;
  const protocol::ControlBlock& control_;
  os::SharedHeap& arena_;
  const int rank_;
  std::uint64_t exports_made_ = 0;
  std::map<void*, std::uint64_t> exports_;  // by address: the offset of the ExportedMemory
  Mappings mappings_;                       // by serial
  std::uint64_t uses_ = 0;
  std::uint64_t looked_at_ = 0;  // uses_ when this worker last looked for memory that is wanted back
};

}  // namespace syncrun::detail::worker::devices::cuda
