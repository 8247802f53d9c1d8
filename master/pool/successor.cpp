#include "master/pool/successor.hpp"

#include "common/os/sign_of_life.hpp"

namespace syncrun::detail::master::pool {

void forget_peers(const protocol::ControlBlock& control, std::uint64_t last) noexcept {
  protocol::ControlHeader& header = control.header();
  for (auto& failed : header.failed_comms) failed.store(last, std::memory_order_release);
  for (int rank = 0; rank < control.world_size(); ++rank) control.worker(rank).released_ns.store(0);
  header.replacements.fetch_add(1, std::memory_order_seq_cst);
  header.to_workers.ring();  // idle ones give up now what belongs to the dead
}

void prepare_slot(const protocol::ControlBlock& control, const Successor& successor) {
  protocol::WorkerSlot& slot = control.worker(successor.rank);
  slot.collective_step.store(protocol::kLeft, std::memory_order_seq_cst);
  slot.collective_command.store(successor.last, std::memory_order_seq_cst);
  slot.vote.store(protocol::vote_word(successor.last, protocol::Vote::failed), std::memory_order_seq_cst);
  slot.plan.store(0);
  slot.plan_wait.store(0);
  slot.progress.store(protocol::progress_word(0, protocol::Phase::spawn));
  slot.reason.front() = '\0';
  slot.pid.store(0);
  slot.start.store(protocol::StartState::starting, std::memory_order_seq_cst);
  ++slot.predecessors;
  os::initialise_life(slot.life);
  slot.received = successor.received;
  slot.done.store(successor.last, std::memory_order_seq_cst);
}

}  // namespace syncrun::detail::master::pool
