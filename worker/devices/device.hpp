#pragma once

// A worker's device: what it is made from, its parts (device_parts.hpp), and what concerns all of them. CUDA devices are
// in a library of their own, which only workers with a GPU load.

#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "common/os/shared_heap.hpp"
#include "common/protocol/command.hpp"
#include "syncrun/error.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/comm/rendezvous.hpp"
#include "worker/devices/device_parts.hpp"

namespace syncrun::detail::worker::devices {

/// What a device is made from. All of it outlives the device.
struct DeviceContext {
  const process::Attachment& attachment;
  os::SharedHeap& arena;         // this rank's part of the segment, where the master and peers read
  comm::CpuComm& host_comm;      // collectives in shared memory
  comm::CommCore* nodes_comm;    // collectives in the host memory of several nodes; null in a session on one node
  comm::Rendezvous& rendezvous;  // for setting up what devices of peers share
  const process::Interruption& interruption;  // ends waits in a command
  std::function<void()> look_ahead;           // called repeatedly while the device computes
  /// Called when the device is out of memory. Frees copies of Values that are valid elsewhere, up to this size. Returns
  /// how many bytes it has freed: 0 if there was no such copy.
  std::function<std::size_t(std::size_t bytes)> free_spare;
};

/// Calls `allocate()`. If memory runs out, frees spare copies of Values and tries again. Throws what `allocate` throws,
/// and then adds what was freed.
template <class Allocate>
auto allocate_with_spare(const DeviceContext& context, std::size_t bytes, Allocate&& allocate) {
  for (std::size_t freed = 0;;) {
    try {
      return allocate();
    } catch (const Error& error) {
      if (error.native_code() != ENOMEM || !context.free_spare) throw;
      const std::size_t more = context.free_spare(bytes);
      freed += more;
      if (more != 0) continue;
      const std::string dropped =
          freed == 0 ? "no copy of a Value can be dropped"
                     : std::to_string(freed) + " bytes of copies of Values were dropped, and no other copy can be";
      throw Error(error.kind(),
                  std::string(error.what()) + "; " + dropped + " (session.memory(device) lists what lies there)",
                  ENOMEM);
    }
  }
}

/// The parts of a device. They live as long as the device.
struct DeviceParts {
  DeviceMemory& memory;
  PeerAccess& peers;
  InputStage& inputs;
  Arithmetic& arithmetic;
  DeviceOutputs& outputs;
  OutputReducer* reducer = nullptr;  // null: outputs are always shared before the workers reduce them
  // Null if the device is not a GPU.
  GpuHandles* handles = nullptr;
  GraphRecorder* graphs = nullptr;
  GradientNorm* norm = nullptr;

  bool is_gpu() const noexcept { return handles != nullptr; }
};

/// One device, used by the thread that serves calls.
class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;

  virtual DeviceParts parts() noexcept = 0;

  /// The communicator of the devices of this command, which are all of the same kind, and that of this device alone.
  virtual comm::CommCore& comm(const protocol::CommandHead& command) = 0;
  virtual comm::CommCore& solo() noexcept = 0;
  /// Called between two commands, after workers of peers were lost and replaced. Gives up what belongs to the dead: their
  /// memory, and connections to them. May wait for the device.
  virtual void forget_replaced_peers() noexcept {}
  /// Unpins shared memory, before its pages are given back to the system.
  virtual void unpin() {}

  /// The memory that can be allocated, and all memory of the device.
  virtual protocol::MemorySize memory_size() = 0;
  /// The hardware in a few words, such as "NVIDIA H100 PCIe, 85 GB".
  virtual std::string hardware() const = 0;

  /// Gives up the work of a call that failed. Returns when no such work is left.
  virtual void abandon() noexcept = 0;
  /// Whether a failure has made the device unusable.
  virtual bool is_lost() const noexcept = 0;
};

/// A CPU device: its memory is this rank's arena of the segment, so that peers can reduce it in place.
std::unique_ptr<WorkerDevice> make_cpu_device(const DeviceContext& context);
/// Makes a CUDA device with the library for CUDA devices. Throws Error (system) if this library cannot be loaded.
std::unique_ptr<WorkerDevice> make_cuda_device(const DeviceContext& context);

}  // namespace syncrun::detail::worker::devices
