#pragma once

// Memory of this rank in which slower peers may still work after this rank has left a command early.
//
// In a collective, peers write to the arrays of all ranks. A rank normally leaves a collective when all peers are done
// with its memory. If a worker is lost or the command fails, a rank leaves at once, and what it frees must not be used
// again before its peers have left the command too. Otherwise, a peer would overwrite the values of a later command.
// Peers go on reading after start_gather_into_pages: its callers meet again before they change or free what they gave.

#include <cstdint>
#include <vector>

#include "common/os/shared_heap.hpp"
#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::comm {

/// Used by the thread that serves calls. Costs nothing while no command fails.
class LeftMemory {
 public:
  /// `arena`: the memory that peers can reach. Both arguments outlive this object.
  LeftMemory(const process::Attachment& attachment, os::SharedHeap& arena)
      : attachment_(attachment), arena_(arena), awaited_(static_cast<std::size_t>(attachment.world_size)) {}
  LeftMemory(const LeftMemory&) = delete;
  LeftMemory& operator=(const LeftMemory&) = delete;

  /// This rank leaves the command early. From here on, nothing that it frees is used again, until collect() finds that
  /// all peers on this node are done with the command, or are lost. Called before anything of the command is freed.
  void keep(const protocol::Command& command) noexcept;
  /// Whether this rank has left the command of this number early. A body may have caught the exception.
  bool has_left(std::uint64_t command) const noexcept { return last_ == command; }
  /// Called between commands.
  void collect() noexcept {
    if (is_keeping_) [[unlikely]]
      release_if_done();
  }

 private:
  void release_if_done() noexcept;

  const process::Attachment& attachment_;
  os::SharedHeap& arena_;
  std::vector<std::uint64_t> awaited_;  // by rank: the last such command of the rank, or 0
  std::uint64_t last_ = 0;              // the last command that this rank has left
  bool is_keeping_ = false;
};

}  // namespace syncrun::detail::worker::comm
