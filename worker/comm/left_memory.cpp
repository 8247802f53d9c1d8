#include "worker/comm/left_memory.hpp"

#include <algorithm>

namespace syncrun::detail::worker::comm {

void LeftMemory::keep(const protocol::Command& command) noexcept {
  last_ = command.id;
  for (const int rank : command.ranks) {
    if (rank == attachment_.rank || !attachment_.place.has(rank)) continue;
    std::uint64_t& awaited = awaited_[static_cast<std::size_t>(rank)];
    awaited = std::max(awaited, command.id);
    is_keeping_ = true;
  }
  if (is_keeping_) arena_.keep_freed();
}

void LeftMemory::release_if_done() noexcept {
  for (std::size_t rank = 0; rank < awaited_.size(); ++rank) {
    if (awaited_[rank] == 0) continue;
    const protocol::WorkerSlot& peer = attachment_.control.worker(static_cast<int>(rank));
    const bool is_lost = peer.is_lost.load(std::memory_order_seq_cst) != 0;
    if (!is_lost && peer.done.load(std::memory_order_seq_cst) < awaited_[rank]) return;
    awaited_[rank] = 0;
  }
  is_keeping_ = false;
  arena_.release_kept();
}

}  // namespace syncrun::detail::worker::comm
