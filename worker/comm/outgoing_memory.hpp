#pragma once

// Memory of outputs that a worker has handed to the master, until the master has read them.

#include <atomic>
#include <cstdint>
#include <deque>

#include "common/os/shared_heap.hpp"

namespace syncrun::detail::worker::comm {

class OutgoingMemory {
 public:
  /// `consumed`: the last command whose outputs the master no longer needs.
  OutgoingMemory(os::SharedHeap& arena, const std::atomic<std::uint64_t>& consumed) noexcept
      : arena_(arena), consumed_(consumed) {}
  OutgoingMemory(const OutgoingMemory&) = delete;
  OutgoingMemory& operator=(const OutgoingMemory&) = delete;

  /// Frees the arena's memory at `offset` after the master has consumed the command. Calls are in the order of the
  /// commands.
  void free_when_consumed(std::uint64_t command, std::uint64_t offset) { waiting_.push_back({command, offset}); }
  /// Frees memory that was not handed over after all.
  void free(std::uint64_t offset) noexcept { arena_.free(offset, os::SharedHeap::Giveback::later); }
  /// Frees the memory that the master has consumed.
  void collect() noexcept {
    if (waiting_.empty()) return;
    const std::uint64_t consumed = consumed_.load(std::memory_order_acquire);
    while (!waiting_.empty() && waiting_.front().command <= consumed) {
      free(waiting_.front().offset);
      waiting_.pop_front();
    }
  }

 private:
  struct Block {
    std::uint64_t command;
    std::uint64_t offset;
  };
  os::SharedHeap& arena_;
  const std::atomic<std::uint64_t>& consumed_;
  std::deque<Block> waiting_;
};

}  // namespace syncrun::detail::worker::comm
