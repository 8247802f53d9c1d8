#pragma once

// Brings rows from shared memory to a GPU: the rows of the command that runs, and while it computes, those of the next
// command. There are two sets of buffers, which commands use in turn, according to their numbers. A set is written
// again only after the command that read it has ended.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "worker/devices/cuda/file_feed.hpp"
#include "worker/devices/cuda/kernels.hpp"
#include "worker/devices/cuda/memory_pool.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/cuda/pinned_pages.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail {

class Staging {
 public:
  /// `trim_device` returns unused blocks of the device's other pool to the device.
  Staging(PinnedPages& pinned, const DeviceContext& context, std::function<void()> trim_device);

  void begin_command(std::uint64_t command) noexcept { command_ = command; }
  void begin_ahead(std::uint64_t command) noexcept { ahead_ = command; }
  /// Starts the transfers that were requested since begin_ahead.
  void end_ahead();
  /// Forgets everything that was requested or copied ahead. Returns when no such copy is running.
  void abandon() noexcept;

  /// Requests rows of an array in shared memory or in a file. Returns their address in device memory. They are there
  /// after flush(), in the order of its stream.
  void* bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream);
  /// The same for rows by index of an array in device memory.
  void* gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                     std::int64_t rows);
  /// Starts the requested transfers that have not been done ahead.
  void flush(cudaStream_t stream);

  /// The memory of the rows. See MemoryPool.
  std::size_t held_bytes() const noexcept { return pool_.held_bytes(); }
  std::size_t free_bytes() const noexcept { return pool_.free_bytes(); }
  void trim() noexcept { pool_.trim(); }

 private:
  struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
    // What was copied ahead, and for which command.
    std::uint64_t command = 0;
    const std::byte* array = nullptr;
    const std::int64_t* indices = nullptr;
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::size_t row_bytes = 0;
  };
  void bring_shared(void* to, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream);
  void* memory_of(Buffer& buffer, std::size_t bytes);
  void* allocate(std::size_t bytes);

  PinnedPages& pinned_;
  const DeviceContext& context_;
  std::function<void()> trim_device_;
  FileFeed feed_;
  MemoryPool pool_;  // separate from the device's pool, because two streams use these blocks
  std::array<std::array<Buffer, kMaxArguments>, 2> buffers_;
  std::uint64_t command_ = 0;
  std::uint64_t ahead_ = 0;  // the command for which rows are copied ahead, or 0
  std::uint64_t arrived_ahead_ = 0;
  Stream copy_stream_;
  Event arrived_;
  std::vector<kernels::GatherJob> jobs_;
  bool is_local_ = false;  // some jobs read device memory
};

}  // namespace syncrun::detail
