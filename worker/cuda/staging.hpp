#pragma once

// Rows on their way from shared memory to a GPU: those of the command that runs, and, while it computes, those of the
// next. Two sets of buffers take turns, by the command's number; a set is written again only when the command that read
// it is over.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

#include "common/control_block.hpp"
#include "worker/cuda/file_feed.hpp"
#include "worker/cuda/kernels.hpp"
#include "worker/cuda/memory_pool.hpp"
#include "worker/cuda/owners.hpp"
#include "worker/cuda/pinned_pages.hpp"

namespace syncrun::detail {

class Staging {
 public:
  /// `interruption` as of FileFeed.
  Staging(PinnedPages& pinned, const Interruption& interruption);

  void begin_command(std::uint64_t command) noexcept { command_ = command; }
  void begin_ahead(std::uint64_t command) noexcept { ahead_ = command; }
  /// Starts what was asked for since begin_ahead.
  void end_ahead();
  /// Forgets what was asked for or brought ahead; nothing of it is under way any more.
  void abandon() noexcept;

  /// Rows of an array in shared memory or in a file. Returns where they will be in device memory once flush() was called,
  /// in the order of its stream.
  void* bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream);
  /// Rows by index of an array in device memory.
  void* gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                     std::int64_t rows);
  /// Starts what was asked for and was not there yet.
  void flush(cudaStream_t stream);

 private:
  struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
    // What was brought ahead, and for which command.
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
  FileFeed feed_;
  MemoryPool pool_;  // its own: two streams use these blocks
  std::array<std::array<Buffer, kMaxArguments>, 2> buffers_;
  std::uint64_t command_ = 0;
  std::uint64_t ahead_ = 0;  // the command to bring rows for, or 0
  std::uint64_t arrived_ahead_ = 0;
  Stream copy_stream_;
  Event arrived_;
  std::vector<kernels::GatherJob> jobs_;
  bool is_local_ = false;  // some of them read device memory
};

}  // namespace syncrun::detail
