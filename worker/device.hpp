#pragma once

// The device seam: what a worker asks of its device. CPU devices implement it here; CUDA devices in a library of their
// own, which only workers load.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/shared_heap.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/output.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

class Segment;

/// One device, used by the thread that serves calls. "Device memory" is where the bodies' views point. Work may be
/// asynchronous until finish(). Members throw Error: system, cuda.
class Device {
 public:
  virtual ~Device() = default;

  /// Memory that stays until it is released: copies of shared variables, scratch.
  virtual void* allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Memory of an output, zero-filled.
  virtual OutputBuffer allocate_output(std::size_t bytes) = 0;

  /// Rows [begin, begin + count) of an array in shared memory, as device memory: valid until the next request for the
  /// same argument. Where device memory and shared memory are one, no copy is made.
  virtual void* take_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes, std::int64_t begin,
                          std::int64_t count) = 0;
  /// The same for rows by index.
  virtual void* gather_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                            std::span<const std::int64_t> indices) = 0;
  /// Rows by index of an array in device memory.
  virtual void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                                  std::span<const std::int64_t> indices) = 0;

  /// Between shared memory and device memory.
  virtual void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) = 0;
  virtual void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) = 0;
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  virtual void clear(void* device_memory, std::size_t bytes) = 0;

  /// into = into (op) value. For avg a running mean: each counts by its weight, a fraction of the two together.
  virtual void accumulate(DType dtype, Reduction reduction, void* into, const void* value,
                          std::array<double, 2> weights, std::size_t elements) = 0;

  /// Returns when all work so far is done; throws what went wrong in it.
  virtual void finish() = 0;
};

/// A CPU device: its memory is this rank's arena of the segment, so that peers can reduce it in place.
std::unique_ptr<Device> make_cpu_device(const Segment& segment, SharedHeap& arena);

}  // namespace syncrun::detail
