#pragma once

// Copies from the memory of other GPUs, without their help. The worker of the other GPU has exported the memory before.
// This worker maps it once, and then its copy engines read it.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail {

/// Memory that a worker has exported. The description is in the worker's arena as long as the worker lives.
struct ExportedMemory {
  std::uint64_t serial;  // differs from those of all other exports of the session
  int device;            // its number is the same in all processes of the session
  cudaIpcMemHandle_t handle;
};

class PeerCopies {
 public:
  /// The arena is this worker's. Both outlive this object.
  PeerCopies(const Segment& segment, SharedHeap& arena) noexcept : segment_(segment), arena_(arena) {}

  /// Exports memory that cudaMalloc has returned. The memory must not be freed while this worker lives. Returns the
  /// offset of the ExportedMemory: the same one for the same memory. Throws Error (cuda, system).
  std::uint64_t export_memory(void* memory);

  /// Puts a copy from the beginning of a peer's memory on the stream. `exported` is what the peer's export_memory has
  /// returned. Maps the memory at the first copy from it. If the two GPUs cannot reach each other's memory, CUDA copies
  /// through host memory. Throws Error (cuda).
  void copy(void* to, std::uint64_t exported, std::size_t bytes, cudaStream_t stream);

  std::size_t mappings() const noexcept { return mappings_.size(); }
  /// The number of mappings that stay open. The ones that have not been used for the longest time are closed.
  static constexpr std::size_t kMostMappings = 512;

 private:
  struct Mapping {
    MappedGpuMemory memory;
    int device = 0;
    bool is_direct = true;  // this GPU can read the memory
    std::uint64_t last_use = 0;
  };
  Mapping& map(const ExportedMemory& exported);
  void close_oldest();

  const Segment& segment_;
  SharedHeap& arena_;
  std::map<void*, std::uint64_t> exports_;     // by address: the offset of the ExportedMemory
  std::map<std::uint64_t, Mapping> mappings_;  // by serial
  std::uint64_t uses_ = 0;
};

}  // namespace syncrun::detail
