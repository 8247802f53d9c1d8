#include "worker/comm/meetings.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "common/text/errors.hpp"
#include "common/text/fixed_text.hpp"
#include "worker/comm/call_interruption.hpp"

namespace syncrun::detail::worker::comm {

namespace {

const char* name_of(protocol::CollectiveKind kind) noexcept {
  switch (kind) {
    case protocol::CollectiveKind::barrier: return "barrier";
    case protocol::CollectiveKind::all_reduce: return "all_reduce";
    case protocol::CollectiveKind::reduce: return "reduce";
    case protocol::CollectiveKind::reduce_scatter: return "reduce_scatter";
    case protocol::CollectiveKind::broadcast: return "broadcast";
    case protocol::CollectiveKind::all_gather: return "all_gather";
    case protocol::CollectiveKind::gather: return "gather";
    case protocol::CollectiveKind::scatter: return "scatter";
  }
  return "";
}

bool agree(const protocol::Contribution& a, const protocol::Contribution& b) noexcept {
  return a.operation == b.operation && a.elements == b.elements && a.dtype == b.dtype && a.reduction == b.reduction &&
         a.root == b.root && a.division == b.division && a.purpose == b.purpose && a.label.hash == b.label.hash;
}

std::uint32_t hash_of(std::string_view text) noexcept {  // FNV-1a
  std::uint32_t hash = 2166136261U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return hash == 0 ? 1 : hash;
}

std::string labelled(const protocol::Contribution& one) {
  return one.label.hash == 0 ? "" : " for " + std::string(text::get_text(one.label.text));
}

/// For the error: describes the collective that a rank calls, and how it differs from `other`.
std::string describe(const protocol::Contribution& one, const protocol::Contribution& other) {
  if (one.operation == protocol::CollectiveKind::barrier) {
    return one.purpose == protocol::MeetingPurpose{} ? "barrier" + labelled(one) : "one that has to be set up first";
  }
  std::string text = std::string(name_of(one.operation)) + " of " + std::to_string(one.elements) + " ";
  switch (one.operation) {
    case protocol::CollectiveKind::broadcast: text += to_string(one.dtype); break;
    case protocol::CollectiveKind::all_gather:
    case protocol::CollectiveKind::gather:
    case protocol::CollectiveKind::scatter: text += "bytes"; break;  // their type does not matter
    case protocol::CollectiveKind::barrier: break;
    case protocol::CollectiveKind::all_reduce:
    case protocol::CollectiveKind::reduce:
    case protocol::CollectiveKind::reduce_scatter:
      text += std::string(to_string(one.dtype)) + " (" + std::string(to_string(one.reduction)) + ")";
  }
  text += labelled(one);
  if (one.operation != other.operation) return text;
  if (one.root != other.root) text += " with root " + std::to_string(one.root);
  else if (one.division != other.division) text += " with other lengths";
  return text;
}

}  // namespace

os::Patience patience_of(const process::WaitLimits& limits) noexcept {
  if (!limits.deadline) return os::Patience(os::Milliseconds(0));
  return limits.deadline->count() > 0 ? os::Patience(*limits.deadline) : os::Patience::none();
}

void throw_peers_late(const process::WaitLimits& limits) {
  throw Error(ErrorKind::timeout, "the other ranks did not come within " +
                                      std::to_string(limits.deadline.value_or(os::Milliseconds(0)).count()) + " ms");
}

void throw_has_left(int other, int rank) {
  text::throw_usage("ranks disagree in a collective: rank " + std::to_string(other) + " has left the call, and rank " +
                    std::to_string(rank) + " is still in one");
}

void require_agreement(const protocol::Contribution& first, int first_rank, const protocol::Contribution& other,
                       int other_rank) {
  if (agree(first, other)) return;
  text::throw_usage("ranks disagree in a collective: rank " + std::to_string(first_rank) + " calls " +
                    describe(first, other) + ", rank " + std::to_string(other_rank) + " calls " +
                    describe(other, first));
}

Meetings::Meetings(const process::Attachment& attachment, os::WaitPolicy policy)
    : attachment_(attachment), policy_(policy) {
  ranks_.reserve(static_cast<std::size_t>(attachment.world_size));
  readers_.reserve(ranks_.capacity());
  take_ranks(protocol::RankSet::all(attachment.world_size));
}

void Meetings::take_ranks(const protocol::RankSet& ranks) noexcept {
  set_ = ranks;
  ranks_.clear();
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(ranks_), [this](int rank) { return is_here(rank); });
  position_ = static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), attachment_.rank) - ranks_.begin());
}

void Meetings::set_label(std::string_view text) noexcept {
  label_.hash = text.empty() ? 0 : hash_of(text);
  const std::size_t room = label_.text.size() - 1;
  text::put_text(label_.text, text.size() > room ? text.substr(text.size() - room) : text);
}

void Meetings::begin(const protocol::Command& command) noexcept {
  label_.hash = 0;
  if (command.ranks != set_) take_ranks(command.ranks);
  command_ = &command;
  begun_ = command.id;
  step_ = 0;
  exchanges_ = 0;
  meetings_ = 0;
}

void Meetings::leave(const protocol::Command& command) noexcept {
  if (std::exchange(left_, command.id) == command.id) return;
  protocol::WorkerSlot& slot = attachment_.slot();
  // Not by the address: an older command may have been in the same slot.
  const bool was_begun = begun_ == command.id;
  const std::uint64_t steps = was_begun ? step_ : 0;
  protocol::Outbox& outbox = attachment_.control.outbox(command, attachment_.rank);
  outbox.collective_steps = steps;
  outbox.exchanges = was_begun ? exchanges_ : 0;
  if (steps == 0) {
    slot.collective_step.store(0, std::memory_order_seq_cst);
    slot.collective_command.store(command.id, std::memory_order_seq_cst);
  }
  slot.collective_step.store(protocol::kLeft, std::memory_order_seq_cst);
  attachment_.control.header().to_peers.ring();
  if (!protocol::meets_across_nodes(command.comm)) return;
  slot.exchange.left.store(command.id, std::memory_order_seq_cst);
  attachment_.control.header().to_master.ring();
}

// ---- steps ----------------------------------------------------------------------------------------------------

/// Where a rank is, compared with this rank's step. The command is read again after the step. If it has not changed,
/// the step belongs to that command. The step may also have been cleared for the next command. Then the result is
/// `behind`, and the caller checks again.
Meetings::Presence Meetings::presence_of(int rank) const noexcept {
  const protocol::WorkerSlot& slot = attachment_.control.worker(rank);
  const std::uint64_t command = slot.collective_command.load(std::memory_order_seq_cst);
  if (command < command_->id) return Presence::behind;
  const std::uint64_t step = slot.collective_step.load(std::memory_order_seq_cst);
  const bool is_here = command == command_->id && step != protocol::kLeft &&
                       slot.collective_command.load(std::memory_order_seq_cst) == command_->id;
  if (!is_here) return Presence::elsewhere;
  return step >= step_ ? Presence::here : Presence::behind;
}

void Meetings::take_step() noexcept {
  protocol::WorkerSlot& slot = attachment_.slot();
  if (++step_ == 1) {
    slot.collective_step.store(0, std::memory_order_seq_cst);
    slot.collective_command.store(command_->id, std::memory_order_seq_cst);
  }
  slot.collective_step.store(step_, std::memory_order_seq_cst);
  attachment_.control.header().to_peers.ring();
}

void Meetings::step(const process::WaitLimits& limits) {
  os::Patience patience = patience_of(limits);
  step(limits, patience);
}

void Meetings::step(const process::WaitLimits& limits, os::Patience& patience) {
  take_step();
  bool somebody_is_elsewhere = false;
  const auto nobody_is_behind = [&] {
    somebody_is_elsewhere = false;
    for (const int rank : ranks_) {
      const Presence presence = presence_of(rank);
      if (presence == Presence::behind) return false;
      somebody_is_elsewhere = somebody_is_elsewhere || presence == Presence::elsewhere;
    }
    return true;
  };
  await(nobody_is_behind, limits, patience);
  if (somebody_is_elsewhere) check_that_all_are_here(limits.interruption);
}

/// A rank may have taken this step and continued. It is an error if a rank has left the call without taking it.
void Meetings::check_that_all_are_here(const process::Interruption& interruption) const {
  for (const int rank : ranks_) {
    // A rank that seems to be behind has left as well: it is about to enter a collective of its next command.
    if (presence_of(rank) == Presence::here) continue;
    if (attachment_.control.outbox(*command_, rank).collective_steps >= step_) continue;
    if (interruption.is_set()) interruption.raise();  // it left because it or another rank failed
    throw_has_left(rank, attachment_.rank);
  }
}

// ---- contributions --------------------------------------------------------------------------------------------

void Meetings::reclaim_buffers(const process::WaitLimits& limits) {
  if (last_command_ == command_->id) return;  // avoids reading the clock
  os::Patience patience = patience_of(limits);
  reclaim_buffers(limits, patience);
}

void Meetings::reclaim_buffers(const process::WaitLimits& limits, os::Patience& patience) {
  if (last_command_ == command_->id) return;
  const auto all_are_done = [&] {
    for (const int rank : readers_) {
      if (rank == attachment_.rank) continue;
      if (attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0) continue;  // it reads no more
      if (attachment_.control.worker(rank).done.load(std::memory_order_seq_cst) < last_command_) return false;
    }
    return true;
  };
  await(all_are_done, limits, patience);
  last_command_ = command_->id;
  if (readers_ != ranks_) readers_.assign(ranks_.begin(), ranks_.end());
}

std::size_t Meetings::meet(const protocol::Contribution& mine, const process::WaitLimits& limits) {
  os::Patience patience = patience_of(limits);  // for both waits
  reclaim_buffers(limits, patience);
  const std::size_t parity = meetings_++ % 2;
  protocol::Contribution& own = attachment_.slot().contributions[parity];
  own = mine;
  if (label_.hash != 0) own.label = label_;
  step(limits, patience);
  check_agreement(parity);
  return parity;
}

void Meetings::check_agreement(std::size_t parity) const {
  for (int position = 1; position < count(); ++position) {
    require_agreement(contribution(0, parity), rank_at(0), contribution(position, parity), rank_at(position));
  }
}

// ---- votes ----------------------------------------------------------------------------------------------------

/// `are_all_in` becomes false if a rank of this node has not voted yet.
bool Meetings::all_here_voted_ok(const protocol::Command& command, bool& are_all_in) const noexcept {
  const auto& control = attachment_.control;
  bool ok = true;
  for (const int rank : command.ranks) {
    if (!is_here(rank)) continue;
    // The word shows that the rank has voted. The rank may already be in a later command, so the vote itself is read
    // from its outbox.
    if (control.worker(rank).vote.load(std::memory_order_seq_cst) <
        protocol::vote_word(command.id, protocol::Vote::none))
      return are_all_in = false;
    ok = ok && control.outbox(command, rank).cast == protocol::Vote::ok;
  }
  return ok;
}

bool Meetings::all_voted_ok(const protocol::Command& command) {
  const auto& control = attachment_.control;
  bool ok = true;
  os::Patience endless{os::Milliseconds(0)};
  const bool has_others = command.wants_vote && protocol::meets_across_nodes(command.comm);
  const auto ready = [&] {
    bool are_all_in = true;
    ok = all_here_voted_ok(command, are_all_in);
    if (!has_others || !are_all_in) return are_all_in;
    const std::uint64_t others = command.vote_of_others.load(std::memory_order_seq_cst);
    ok = ok && others == protocol::vote_word(command.id, protocol::Vote::ok);
    return others >= protocol::vote_word(command.id, protocol::Vote::none);
  };
  // A rank that failed still votes, so only the loss of a worker ends this wait early. If the session continues after a
  // loss, all surviving ranks must come to the same result. So a vote counts if the lost rank has cast it. Only the node of
  // the rank knows that, and tells the others (NodeExchange).
  const auto is_out = [&](int rank) {
    const protocol::WorkerSlot& slot = control.worker(rank);
    return is_here(rank) && slot.is_lost.load(std::memory_order_seq_cst) != 0 &&
           slot.vote.load(std::memory_order_seq_cst) < protocol::vote_word(command.id, protocol::Vote::none);
  };
  const auto lost = [&] {
    if (control.header().lost.load(std::memory_order_seq_cst) == 0) return false;
    if (!control.header().respawns) return true;
    for (const int rank : command.ranks) {
      if (is_out(rank)) return true;
    }
    return false;
  };
  if (os::wait_until(control.header().to_peers, policy_, endless, ready, lost) != os::Woken::ready) {
    raise_session_lost(attachment_);
  }
  return ok;
}

}  // namespace syncrun::detail::worker::comm
