#include "worker/meetings.hpp"

#include <string>

#include "common/errors.hpp"
#include "worker/call_interruption.hpp"

namespace syncrun::detail {

namespace {

const char* name_of(CollectiveKind kind) noexcept {
  switch (kind) {
    case CollectiveKind::barrier: return "barrier";
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::reduce: return "reduce";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::gather: return "gather";
    case CollectiveKind::scatter: return "scatter";
  }
  return "";
}

bool agree(const Contribution& a, const Contribution& b) noexcept {
  return a.operation == b.operation && a.elements == b.elements && a.dtype == b.dtype && a.reduction == b.reduction &&
         a.root == b.root && a.division == b.division && a.purpose == b.purpose;
}

/// For the error: what a rank calls, with what tells it from what `other` calls.
std::string describe(const Contribution& one, const Contribution& other) {
  if (one.operation == CollectiveKind::barrier) {
    return one.purpose == MeetingPurpose{} ? "barrier" : "one that has to be set up first";
  }
  std::string text = std::string(name_of(one.operation)) + " of " + std::to_string(one.elements) + " " +
                     std::string(to_string(one.dtype)) + " (" + std::string(to_string(one.reduction)) + ")";
  if (one.operation != other.operation) return text;
  if (one.root != other.root) text += " with root " + std::to_string(one.root);
  else if (one.division != other.division) text += " with other lengths";
  return text;
}

}  // namespace

Patience patience_of(const WaitLimits& limits) noexcept {
  if (!limits.deadline) return Patience(Milliseconds(0));
  return limits.deadline->count() > 0 ? Patience(*limits.deadline) : Patience::none();
}

void throw_peers_late(const WaitLimits& limits) {
  throw Error(ErrorKind::timeout, "the other ranks did not come within " +
                                      std::to_string(limits.deadline.value_or(Milliseconds(0)).count()) + " ms");
}

void Meetings::begin(const Command& command) noexcept {
  command_ = &command;
  step_ = 0;
  meetings_ = 0;
}

void Meetings::leave(const Command& command) noexcept {
  WorkerSlot& slot = attachment_.slot();
  const std::uint64_t steps = command_ == &command ? step_ : 0;
  attachment_.control.outbox(command.id, attachment_.rank).collective_steps = steps;
  if (steps == 0) {
    slot.collective_step.store(0, std::memory_order_seq_cst);
    slot.collective_command.store(command.id, std::memory_order_seq_cst);
  }
  slot.collective_step.store(kLeft, std::memory_order_seq_cst);
  attachment_.control.header().to_peers.ring();
}

// ---- steps ----------------------------------------------------------------------------------------------------

/// Where a rank is, seen from this rank's step. The command is read again after the step: if it has not changed, the
/// step is of that command (or cleared for the next, which reads as behind and is looked at again).
Meetings::Presence Meetings::presence_of(int rank) const noexcept {
  const WorkerSlot& slot = attachment_.control.worker(rank);
  const std::uint64_t command = slot.collective_command.load(std::memory_order_seq_cst);
  if (command < command_->id) return Presence::behind;
  const std::uint64_t step = slot.collective_step.load(std::memory_order_seq_cst);
  const bool is_here = command == command_->id && step != kLeft &&
                       slot.collective_command.load(std::memory_order_seq_cst) == command_->id;
  if (!is_here) return Presence::elsewhere;
  return step >= step_ ? Presence::here : Presence::behind;
}

void Meetings::take_step() noexcept {
  WorkerSlot& slot = attachment_.slot();
  if (++step_ == 1) {
    slot.collective_step.store(0, std::memory_order_seq_cst);
    slot.collective_command.store(command_->id, std::memory_order_seq_cst);
  }
  slot.collective_step.store(step_, std::memory_order_seq_cst);
  attachment_.control.header().to_peers.ring();
}

void Meetings::step(const WaitLimits& limits) {
  take_step();
  bool somebody_is_elsewhere = false;
  const auto nobody_is_behind = [&] {
    somebody_is_elsewhere = false;
    for (int rank = 0; rank < attachment_.world_size; ++rank) {
      const Presence presence = presence_of(rank);
      if (presence == Presence::behind) return false;
      somebody_is_elsewhere = somebody_is_elsewhere || presence == Presence::elsewhere;
    }
    return true;
  };
  await(nobody_is_behind, limits);
  if (somebody_is_elsewhere) check_that_all_are_here(limits.interruption);
}

/// Who has taken this step and gone on is fine; who has left the call without it is not.
void Meetings::check_that_all_are_here(const Interruption& interruption) const {
  for (int rank = 0; rank < attachment_.world_size; ++rank) {
    if (presence_of(rank) != Presence::elsewhere) continue;
    if (attachment_.control.outbox(command_->id, rank).collective_steps >= step_) continue;
    if (interruption.is_set()) throw Abandoned();  // it left because it failed, or since somebody did
    throw_usage("ranks disagree in a collective: rank " + std::to_string(rank) + " has left the call, and rank " +
                std::to_string(attachment_.rank) + " is still in one");
  }
}

// ---- contributions --------------------------------------------------------------------------------------------

const Contribution& Meetings::contribution(int rank, std::size_t parity) const noexcept {
  return attachment_.control.worker(rank).contributions[parity];
}

void Meetings::reclaim_buffers(const WaitLimits& limits) {
  if (last_command_ == command_->id) return;
  const auto all_are_done = [&] {
    for (int rank = 0; rank < attachment_.world_size; ++rank) {
      if (rank == attachment_.rank) continue;
      if (attachment_.control.worker(rank).done.load(std::memory_order_seq_cst) < last_command_) return false;
    }
    return true;
  };
  await(all_are_done, limits);
  last_command_ = command_->id;
}

std::size_t Meetings::meet(const Contribution& mine, const WaitLimits& limits) {
  reclaim_buffers(limits);
  const std::size_t parity = meetings_++ % 2;
  attachment_.slot().contributions[parity] = mine;
  step(limits);
  check_agreement(parity);
  return parity;
}

void Meetings::check_agreement(std::size_t parity) const {
  const Contribution& first = contribution(0, parity);
  for (int rank = 1; rank < attachment_.world_size; ++rank) {
    const Contribution& other = contribution(rank, parity);
    if (agree(first, other)) continue;
    throw_usage("ranks disagree in a collective: rank 0 calls " + describe(first, other) + ", rank " +
                std::to_string(rank) + " calls " + describe(other, first));
  }
}

// ---- votes ----------------------------------------------------------------------------------------------------

bool Meetings::all_voted_ok(const Command& command) {
  const auto& control = attachment_.control;
  bool ok = true;
  Patience endless{Milliseconds(0)};
  const auto ready = [&] {
    ok = true;
    for (const int rank : command.ranks) {
      // The word says that the rank has voted; it may be at a later command already, so its outbox says how.
      if (control.worker(rank).vote.load(std::memory_order_seq_cst) < vote_word(command.id, Vote::none)) return false;
      ok = ok && control.outbox(command.id, rank).vote == Vote::ok;
    }
    return true;
  };
  // A rank that failed stays in the vote: only a loss ends this wait early.
  // Where the session goes on after a loss, all survivors have to come to the same result: a vote that was cast counts.
  const auto is_out = [&](int rank) {
    const WorkerSlot& slot = control.worker(rank);
    return slot.is_lost.load(std::memory_order_seq_cst) != 0 &&
           slot.vote.load(std::memory_order_seq_cst) < vote_word(command.id, Vote::none);
  };
  const auto lost = [&] {
    if (control.header().lost.load(std::memory_order_seq_cst) == 0) return false;
    if (!control.header().respawns) return true;
    for (const int rank : command.ranks) {
      if (is_out(rank)) return true;
    }
    return false;
  };
  if (wait_until(control.header().to_peers, policy_, endless, ready, lost) != Woken::ready) {
    raise_session_lost(attachment_);
  }
  return ok;
}

}  // namespace syncrun::detail
