#include "launcher/pool/successor.hpp"

#include "common/os/life.hpp"

namespace syncrun::detail {

void forget_peers(const ControlBlock& control, std::uint64_t last) noexcept {
  ControlHeader& header = control.header();
  for (auto& failed : header.failed_comms) failed.store(last, std::memory_order_release);
  for (int rank = 0; rank < control.world_size(); ++rank) control.worker(rank).released_ns.store(0);
  header.replacements.fetch_add(1, std::memory_order_seq_cst);
  header.to_workers.ring();  // idle ones give up now what belongs to the dead
}

void prepare_slot(const ControlBlock& control, const Successor& successor) {
  WorkerSlot& slot = control.worker(successor.rank);
  slot.collective_step.store(kLeft, std::memory_order_seq_cst);
  slot.collective_command.store(successor.last, std::memory_order_seq_cst);
  slot.vote.store(vote_word(successor.last, Vote::failed), std::memory_order_seq_cst);
  slot.plan.store(0);
  slot.plan_wait.store(0);
  slot.progress.store(progress_word(0, Phase::spawn));
  slot.reason.front() = '\0';
  slot.start.store(StartState::starting, std::memory_order_seq_cst);
  ++slot.predecessors;
  initialise_life(slot.life);
  slot.received = successor.received;
  slot.done.store(successor.last, std::memory_order_seq_cst);
}

}  // namespace syncrun::detail
