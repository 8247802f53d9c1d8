#pragma once

// Brings rows of files to a GPU. Pages of files cannot be pinned. So threads read them into blocks of pinned memory,
// and the copy engine copies these blocks.

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/staging.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::devices::cuda {

class FileFeed {
 public:
  /// `interruption` ends waits in bring(). The thread that calls bring() checks it.
  explicit FileFeed(const process::Interruption& interruption) noexcept : interruption_(interruption) {}

  /// Brings rows of `from.file` to device memory, in the order of the stream. Returns when they have been read. Throws
  /// Error (system: the file; cuda), and what interrupts the wait.
  void bring(void* to, const SharedRows& from, const RowsWanted& wanted, cudaStream_t stream);

 private:
  /// Pinned memory. It is free when the copy from it is complete.
  struct Block {
    PinnedMemory memory;
    Event is_free;

    std::byte* data() const noexcept { return static_cast<std::byte*>(memory.get()); }
  };
  /// The blocks of one thread. It reads into one block while the other one is copied.
  using Blocks = std::array<Block, 2>;
  struct Job {
    std::byte* to;
    const SharedRows& from;
    RowsWanted wanted;
    std::size_t bytes;
    StreamView stream;
    int device;
    std::atomic<std::size_t> next_piece{0};
    std::atomic<bool> is_given_up{false};
    std::atomic<int> readers{0};  // number of other threads that are still reading
  };

  void make_blocks(std::size_t readers);
  static void read_pieces(Job& job, Blocks& blocks, const std::function<void()>& check);
  static void read_piece(const Job& job, std::size_t begin, std::byte* to, std::size_t bytes);
  void read_with_others(Job& job, std::vector<std::exception_ptr>& failures);

  const process::Interruption& interruption_;
  std::vector<Blocks> blocks_;
};

}  // namespace syncrun::detail::worker::devices::cuda
