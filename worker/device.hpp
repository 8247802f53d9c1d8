#pragma once

// The device seam: what a worker asks of any device. CPU devices implement it here; CUDA devices, which have more to offer
// (gpu_device.hpp), in a library of their own, which only workers load.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "common/shared_heap.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/output.hpp"
#include "syncrun/reduction.hpp"
#include "worker/collectives.hpp"
#include "worker/rendezvous.hpp"

namespace syncrun::detail {

class MappedFile;
class GpuDevice;

/// What a device is made of. Everything outlives it.
struct DeviceContext {
  const Attachment& attachment;
  SharedHeap& arena;                 // this rank's part of the segment: what the master and peers are to read
  CpuComm& host_comm;                // collectives in shared memory
  Rendezvous& rendezvous;            // where peers meet to set up what their devices share
  const Interruption& interruption;  // of every wait in a command
  std::function<void()> look_ahead;  // what can be done while the device computes
};

/// An array in shared memory, or in a file that is mapped.
struct SharedRows {
  const std::byte* array;
  std::size_t row_bytes;
  std::int64_t rows;
  const MappedFile* file = nullptr;  // that `array` is the elements of
  std::size_t bytes() const noexcept { return row_bytes * static_cast<std::size_t>(rows); }
};

/// An output that is reduced among the workers: the same on every rank.
struct OutputReduction {
  DType dtype;
  Reduction reduction;
  std::size_t elements;
  std::span<const int> ranks;              // those that computed something, in order; the first gets the result
  std::span<const double> weights;         // by position in `ranks`, for avg: they sum to 1
  std::span<const std::uint64_t> offsets;  // by position in `ranks`: what share_output returned there
};

/// One device, used by the thread that serves calls. "Device memory" is where the bodies' views point. Work may be
/// asynchronous, in the order it was asked for, until finish(). Members throw Error: system, cuda, nccl.
class Device {
 public:
  virtual ~Device() = default;

  /// Memory that stays until it is released: copies of shared variables, scratch.
  virtual void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Memory of an output, zero-filled.
  virtual OutputBuffer allocate_output(std::size_t bytes) = 0;
  /// An output that may be in ordinary memory of this process, in memory as of allocate_output.
  virtual OutputBuffer adopt_output(OutputBuffer buffer) = 0;

  /// Device memory as a word in the tables of shared memory (VariableCopy), and back.
  virtual std::uint64_t place_of(const void* memory) const noexcept = 0;
  virtual void* at(std::uint64_t place) const noexcept = 0;

  /// Rows [begin, begin + count) of an array in shared memory or a file, as device memory: valid until the next request
  /// for the same argument. Where device memory and shared memory are one, no copy is made.
  virtual void* take_rows(std::size_t argument, const SharedRows& rows, std::int64_t begin, std::int64_t count) = 0;
  /// The same for rows by index; the indices are in shared memory.
  virtual void* gather_rows(std::size_t argument, const SharedRows& rows, std::span<const std::int64_t> indices) = 0;
  /// Rows by index of an array in device memory; the indices are in shared memory.
  virtual void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                                  std::span<const std::int64_t> indices) = 0;
  /// A value in shared memory, as device memory.
  virtual const void* take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) = 0;

  /// The arguments of a command are about to be asked for.
  virtual void begin_command(std::uint64_t) {}
  /// All arguments of a slice were asked for: the body comes next.
  virtual void begin_body() {}
  /// What take_rows, gather_rows and take_scalar will be asked for by the next command: brought along while the current
  /// one computes. Between begin_ahead and end_ahead those members do that, and return nothing.
  virtual void begin_ahead(std::uint64_t) {}
  virtual void end_ahead() {}
  /// It did not work out: the command itself will say so, if it comes to that.
  virtual void drop_ahead() noexcept {}

  /// Before pages of shared memory are given back to the system.
  virtual void unpin() = 0;

  /// Between shared memory and device memory.
  virtual void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) = 0;
  virtual void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) = 0;
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  virtual void clear(void* device_memory, std::size_t bytes) = 0;

  /// into = into (op) value. For avg a running mean: each counts by its weight, a fraction of the two together.
  virtual void accumulate(DType dtype, Reduction reduction, void* into, const void* value,
                          std::array<double, 2> weights, std::size_t elements) = 0;

  /// Applies an update rule to parameters and state in device memory, with a gradient that is there too.
  virtual void apply_update(const UpdateWork& work) = 0;

  /// Brings an output (of allocate_output or adopt_output) to where others can read it once finish() has returned: the
  /// offset in the segment of memory of the arena, which is the caller's to free. 0 for an empty one.
  virtual std::uint64_t share_output(OutputBuffer buffer) = 0;
  /// Outputs up to here are combined by the master; above, by the workers.
  virtual std::size_t large_output_bytes() const noexcept = 0;
  /// Whether outputs are shared before they are reduced among the workers; else they stay in device memory until then.
  virtual bool shares_before_reducing() const noexcept = 0;
  /// Called by all ranks. `own`: this rank's output, where it has one and outputs are not shared before. Returns, on the
  /// rank that gets the result, its offset where that is a new one; else 0.
  virtual std::uint64_t reduce_output(const OutputReduction& what, OutputBuffer own) = 0;

  /// All workers' devices; and this one alone.
  virtual CommCore& comm() noexcept = 0;
  virtual CommCore& solo() noexcept = 0;

  /// Where this is a CUDA device, all of it; else null.
  virtual GpuDevice* gpu() noexcept { return nullptr; }

  /// Gives up the work of a call that failed: returns when nothing of it is left.
  virtual void abandon() noexcept = 0;
  /// Returns when all work so far is done; throws what went wrong in it, or what interrupts the wait.
  virtual void finish() = 0;
  /// A failure after which the device cannot be used any more.
  virtual bool is_lost() const noexcept = 0;
};

/// A CPU device: its memory is this rank's arena of the segment, so that peers can reduce it in place.
std::unique_ptr<Device> make_cpu_device(const DeviceContext& context);

}  // namespace syncrun::detail
