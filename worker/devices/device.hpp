#pragma once

// The device seam: the interface between a worker and its device. CPU devices implement this interface. CUDA devices
// implement an extended one (gpu_device.hpp). They are in a library of their own, which only workers with a GPU load.

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/arrays/reduce.hpp"
#include "common/os/shared_heap.hpp"
#include "common/protocol/command.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/error.hpp"
#include "syncrun/output.hpp"
#include "syncrun/reduction.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/comm/rendezvous.hpp"

namespace syncrun::detail {

class MappedFile;
class GpuDevice;

/// The parts from which a device is made. They outlive it.
struct DeviceContext {
  const Attachment& attachment;
  SharedHeap& arena;                 // this rank's part of the segment, where the master and peers read
  CpuComm& host_comm;                // collectives in shared memory
  CommCore* nodes_comm;              // collectives in the host memory of several nodes; null in a session on one node
  Rendezvous& rendezvous;            // for setting up what devices of peers share
  const Interruption& interruption;  // ends waits in a command
  std::function<void()> look_ahead;  // called repeatedly while the device computes
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

/// Memory of a peer's device, as the peer has described it in a VariableCopy.
struct PeerMemoryPlace {
  int rank;
  std::uint64_t place;
  std::uint64_t exported;
};

/// An array in shared memory, or in a file that is mapped.
struct SharedRows {
  const std::byte* array;
  std::size_t row_bytes;
  std::int64_t rows;
  const MappedFile* file = nullptr;  // the file, if `array` is a mapping of one
  std::size_t bytes() const noexcept { return row_bytes * static_cast<std::size_t>(rows); }
};

/// One device, used by the thread that serves calls. "Device memory" is the memory that the views of bodies point to.
/// Until finish(), work may be asynchronous, in the order of the requests. Members throw Error: system, cuda, nccl.
class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;

  /// Memory that stays until it is released, for copies of shared variables and for scratch memory.
  virtual void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Memory of an output, zero-filled.
  virtual OutputBuffer allocate_output(std::size_t bytes) = 0;
  /// Brings an output into memory of the kind that allocate_output returns. It may be in ordinary memory of this
  /// process before.
  virtual OutputBuffer adopt_output(OutputBuffer buffer) = 0;

  /// Convert an address in device memory to a number for tables in shared memory (VariableCopy), and back.
  virtual std::uint64_t place_of(const void* memory) const noexcept = 0;
  virtual void* at(std::uint64_t place) const noexcept = 0;

  /// Whether the devices of peers can copy from the memory of this one. If not, the master moves values to them through
  /// the memory of the host.
  virtual bool is_open_to_peers() const noexcept { return true; }
  /// Prepares memory from allocate() or allocate_output() for copies by the devices of peers. Returns a number for
  /// copy_from_peer, or 0 if none is necessary or possible.
  virtual std::uint64_t export_memory(void*) { return 0; }
  /// Called between two commands, after workers of peers were lost and replaced. Gives up what belongs to the dead: their
  /// memory, and connections to them. May wait for the device.
  virtual void forget_replaced_peers() noexcept {}
  /// Copies from the memory of a peer, which does not take part. The values there must be complete.
  virtual void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) = 0;
  /// Starts copy_from_peer() for a later command, beside the work of the current one, which does not use the memory.
  /// Returns false if the device cannot do that now. Does not wait for anything.
  virtual bool start_copy_ahead(std::uint64_t, void*, const PeerMemoryPlace&, std::size_t) { return false; }
  /// If a copy was started for this command, waits for it and returns true.
  virtual bool finish_copy_ahead(std::uint64_t) { return false; }

  /// Brings rows [begin, begin + count) of an array in shared memory or in a file to device memory. The result is valid
  /// until the next request for the same argument. If shared memory is device memory, nothing is copied.
  virtual void* take_rows(std::size_t argument, const SharedRows& rows, std::int64_t begin, std::int64_t count) = 0;
  /// The same for rows by index; the indices are in shared memory.
  virtual void* gather_rows(std::size_t argument, const SharedRows& rows, std::span<const std::int64_t> indices) = 0;
  /// Rows by index of an array in device memory; the indices are in shared memory.
  virtual void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                                  std::span<const std::int64_t> indices) = 0;
  /// Brings a value in shared memory to device memory.
  virtual const void* take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) = 0;

  /// Called before the arguments of a command are requested.
  virtual void begin_command(std::uint64_t) {}
  /// Called when all arguments of a slice have been requested, before the body.
  virtual void begin_body() {}
  /// Between begin_ahead and end_ahead, take_rows, gather_rows and take_scalar copy inputs of the next command ahead,
  /// while the current command computes. What they return then has no meaning.
  virtual void begin_ahead(std::uint64_t) {}
  virtual void end_ahead() {}
  /// Forgets inputs that could not be copied ahead. If the cause persists, the command itself will report it.
  virtual void drop_ahead() noexcept {}

  /// copy_in and copy_out copy between shared memory and device memory; copy_within copies within device memory.
  virtual void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) = 0;
  virtual void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) = 0;
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  virtual void clear(void* device_memory, std::size_t bytes) = 0;

  /// into = into (op) value. `value` has the type, and `into` has its partial_type. For avg, a running mean: `weights`
  /// are the fractions of `into` and `value`, which sum to 1.
  virtual void accumulate(DType dtype, Reduction reduction, void* into, const void* value,
                          std::array<double, 2> weights, std::size_t elements) = 0;
  /// Copies elements from one type to the other, one of which is the partial_type of the other. The values are rounded to
  /// nearest.
  virtual void convert(ElementTypes types, const void* from, void* to, std::size_t elements) = 0;

  /// Applies an update rule to parameters and state in device memory. The gradient is in device memory too.
  virtual void apply_update(const UpdateWork& work) = 0;

  /// Brings an output from allocate_output or adopt_output to memory of the arena, where other processes can read it
  /// after finish(). Returns the offset in the segment, or 0 if the output is empty. The caller must free the memory.
  virtual std::uint64_t share_output(OutputBuffer buffer) = 0;
  /// The master combines outputs of up to this size. The workers reduce larger ones.
  virtual std::size_t large_output_bytes() const noexcept = 0;
  /// Whether outputs are always shared before the workers reduce them. Otherwise they stay in device memory until then
  /// if all ranks are GPUs with a communicator in common.
  virtual bool shares_before_reducing() const noexcept = 0;

  /// The communicator of the devices of this command, which are all of the same kind, and that of this device alone.
  virtual CommCore& comm(const CommandHead& command) = 0;
  virtual CommCore& solo() noexcept = 0;

  /// The CUDA device if this is one, otherwise null.
  virtual GpuDevice* gpu() noexcept { return nullptr; }

  /// The memory that can be allocated, and all memory of the device.
  virtual MemorySize memory() = 0;

  /// The hardware in a few words, such as "NVIDIA H100 PCIe, 85 GB".
  virtual std::string hardware() const = 0;

  /// Gives up the work of a call that failed. Returns when no such work is left.
  virtual void abandon() noexcept = 0;
  /// Returns when all work so far is done. Throws errors of that work, and what interrupts the wait.
  virtual void finish() = 0;
  /// Whether a failure has made the device unusable.
  virtual bool is_lost() const noexcept = 0;
};

/// A CPU device: its memory is this rank's arena of the segment, so that peers can reduce it in place.
std::unique_ptr<WorkerDevice> make_cpu_device(const DeviceContext& context);

}  // namespace syncrun::detail
