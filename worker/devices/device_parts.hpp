#pragma once

// What a device does for its worker: one interface for each job. A class that uses a device takes only the parts that it
// needs. "Device memory" is the memory that the views of bodies point to. Work may be asynchronous until
// DeviceMemory::finish(). It is done in the order of the requests to all parts. Members throw Error: system, cuda, nccl.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/arrays/mapped_file.hpp"
#include "common/arrays/reduce.hpp"
#include "common/os/shared_heap.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/output.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::worker::devices {

/// The device owns its parts.
class DevicePart {
 public:
  DevicePart() = default;
  DevicePart(const DevicePart&) = delete;
  DevicePart& operator=(const DevicePart&) = delete;
  virtual ~DevicePart() = default;
};

/// Memory that stays until it is released, for copies of shared variables and for scratch memory, and copies of values.
class DeviceMemory : public DevicePart {
 public:
  virtual void* allocate(std::size_t bytes, os::SharedHeap::Contents contents, std::string_view what) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Convert an address in device memory to a number for tables in shared memory (VariableCopy), and back.
  virtual std::uint64_t place_of(const void* memory) const noexcept = 0;
  virtual void* at(std::uint64_t place) const noexcept = 0;

  /// copy_in and copy_out copy between shared memory and device memory; copy_within copies within device memory.
  virtual void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) = 0;
  virtual void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) = 0;
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  virtual void clear(void* device_memory, std::size_t bytes) = 0;
  /// Returns when all work of the device so far is done. Throws errors of that work, and what interrupts the wait.
  virtual void finish() = 0;
};

/// Memory of a peer's device, as the peer has described it in a VariableCopy.
struct PeerMemoryPlace {
  int rank;
  std::uint64_t place;
  std::uint64_t exported;
};

/// Copies values from the devices of peers, and lets them copy from this one.
class PeerAccess : public DevicePart {
 public:
  /// Whether the devices of peers can copy from the memory of this one. If not, the master moves values to them through
  /// the memory of the host.
  virtual bool is_open_to_peers() const noexcept { return true; }
  /// Prepares memory of this device for copies by the devices of peers. Returns a number for copy_from_peer. Returns 0 if
  /// peers need no number, or cannot copy the memory.
  virtual std::uint64_t export_memory(void*) { return 0; }
  /// Copies from the memory of a peer. The peer does nothing for this. The values there must be complete.
  virtual void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) = 0;
  /// Starts copy_from_peer() for a later command, beside the work of the current one, which does not use the memory.
  /// Returns false if the device cannot do that now. Does not wait for anything.
  virtual bool start_copy_ahead(std::uint64_t, void*, const PeerMemoryPlace&, std::size_t) { return false; }
  /// If a copy was started for this command, waits for it and returns true.
  virtual bool finish_copy_ahead(std::uint64_t) { return false; }
};

/// An array in shared memory, or in a file that is mapped.
struct SharedRows {
  const std::byte* array;
  std::size_t row_bytes;
  std::int64_t rows;
  const arrays::MappedFile* file = nullptr;  // the file, if `array` is a mapping of one
  std::size_t bytes() const noexcept { return row_bytes * static_cast<std::size_t>(rows); }
};

/// Rows of an array: those with the given indices, or if `indices` is null, `rows` rows from `first` on. The indices are
/// in shared memory.
struct RowsWanted {
  const std::int64_t* indices;
  std::int64_t first;
  std::int64_t rows;
  friend bool operator==(const RowsWanted&, const RowsWanted&) = default;
};

/// Brings the inputs of calls to device memory. Each address is valid until the next request for the same argument.
/// If shared memory is device memory, rows without gaps are not copied.
class InputStage : public DevicePart {
 public:
  /// Called before the inputs of a call are requested.
  virtual void begin_command(std::uint64_t) {}
  /// Requests rows of an array in shared memory or in a file. Returns their address in device memory. They are there after
  /// flush().
  virtual void* bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted) = 0;
  /// The same for rows by index of an array in device memory.
  virtual void* gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                             std::span<const std::int64_t> indices) = 0;
  /// The same for a value in shared memory.
  virtual const void* bring_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) = 0;
  /// Called when all inputs of a slice have been requested, before the body.
  virtual void flush() {}
  /// Between these two, bring() and bring_scalar() request inputs of a later call while the current one computes. The
  /// number is that of the later call. The addresses that they return then have no meaning.
  virtual void begin_ahead(std::uint64_t) {}
  virtual void end_ahead() {}
  /// Forgets everything that was requested or copied ahead, and returns when no such copy is running. If inputs could not
  /// be copied ahead and the cause persists, the command itself will report it.
  virtual void abandon() noexcept {}
};

/// Computes with arrays in device memory.
class Arithmetic : public DevicePart {
 public:
  /// into = into (op) value. `value` has the type, and `into` has its partial_type. For avg, a running mean: `weights`
  /// are the fractions of `into` and `value`, which sum to 1.
  virtual void accumulate(DType dtype, Reduction reduction, void* into, const void* value,
                          std::array<double, 2> weights, std::size_t elements) = 0;
  /// Copies elements from one type to the other, one of which is the partial_type of the other. The values are rounded to
  /// nearest.
  virtual void convert(arrays::ElementTypes types, const void* from, void* to, std::size_t elements) = 0;
  /// Applies an update rule to parameters and state. The gradient is in device memory too.
  virtual void apply_update(const UpdateWork& work) = 0;
};

/// Owns the memory of outputs, and brings them to where other processes read them.
class DeviceOutputs : public DevicePart {
 public:
  /// Memory of an output, zero-filled. Its context is this object.
  virtual OutputBuffer allocate(std::size_t bytes) = 0;
  /// Brings an output into memory of the kind that allocate() returns, if it is in other memory of this process.
  virtual OutputBuffer adopt(OutputBuffer buffer) = 0;
  /// Brings an output from allocate() or adopt() to memory of the arena, where other processes can read it after
  /// finish(). Returns the offset in the segment, or 0 if the output is empty. The caller must free the memory.
  virtual std::uint64_t share(OutputBuffer buffer) = 0;
  /// The master combines outputs of up to this size. The workers reduce larger ones.
  virtual std::size_t large_bytes() const noexcept = 0;
};

/// An output that the workers reduce. Its description is the same on every rank.
struct OutputReduction {
  DType dtype;
  Reduction reduction;
  std::size_t elements;
  std::span<const int> ranks;              // those that computed something, in order; the first gets the result
  std::span<const double> weights;         // by position in `ranks`, for avg: they sum to 1
  std::span<const std::uint64_t> offsets;  // by position in `ranks`: where the output is in the segment
};

/// Reduces outputs that are in device memory, through the communicator of the devices.
class OutputReducer : public DevicePart {
 public:
  /// Called by all ranks of a call whose devices have a communicator. `own` is this rank's output, if it has one. On the
  /// rank that gets the result, puts it into memory of the arena and returns its offset; the caller must free it.
  /// Otherwise returns 0.
  virtual std::uint64_t reduce(const OutputReduction& what, OutputBuffer own) = 0;
};

// GPUs only:

/// The stream and the library handles, for bodies, through CudaWorker.
class GpuHandles : public DevicePart {
 public:
  virtual CUstream_st* stream() noexcept = 0;
  virtual cublasContext* cublas() = 0;
  virtual cudnnContext* cudnn() = 0;
};

/// Computes the norm of a gradient, to clip it; see the functions of the same names in worker_interface.hpp.
class GradientNorm : public DevicePart {
 public:
  virtual void sum_squares(const UpdateWork& work, double* squares) = 0;
  virtual void take_root(double* number, const double* divisor) = 0;
};

/// Captured work. Only the device knows its contents.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// Records work in graphs, and runs it again.
class GraphRecorder : public DevicePart {
 public:
  /// Until end_capture(), work that bodies put on the stream is recorded in a graph and not run. end_capture throws
  /// Error (cuda) if something could not be captured.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  /// The result says why the capture failed, or is null if the device does not know it.
  virtual const char* abandon_capture() noexcept = 0;
  virtual void launch(DeviceGraph& graph) = 0;
  /// Changes whenever all graphs become invalid, because a communicator has ended.
  virtual std::uint64_t generation() const noexcept { return 0; }
};

}  // namespace syncrun::detail::worker::devices
