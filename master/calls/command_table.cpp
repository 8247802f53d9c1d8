#include "master/calls/command_table.hpp"

#include <algorithm>
#include <limits>

namespace syncrun::detail::master::calls {

namespace {

/// True if the call may have outputs in the memory of its workers.
bool may_have_outputs(const protocol::Command& command) noexcept {
  const auto* const call = std::get_if<protocol::CallPayload>(&command.payload);
  return call != nullptr && call->outputs_count != 0;
}

}  // namespace

void CommandTable::attach(protocol::ControlBlock control) {
  control_ = control;
  all_ranks_ = protocol::RankSet::all(control.world_size());
  inboxes_.resize(static_cast<std::size_t>(control.world_size()));
  clocks_ = CallClocks(control.world_size());
}

// ---- in flight ------------------------------------------------------------------------------------------------

const CommandTable::Entry* CommandTable::search(std::uint64_t id) const noexcept {
  const auto found = std::ranges::lower_bound(entries_, id, {}, &Entry::id);
  return found == entries_.end() || found->id != id ? nullptr : &*found;
}

std::optional<std::uint64_t> CommandTable::command_of(const CallResult& result) const noexcept {
  for (const Entry& entry : entries_) {
    if (in_flight_[entry.slot]->result == &result) return entry.id;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> CommandTable::first_user(const void* record) const noexcept {
  for (const Entry& entry : entries_) {
    if (in_flight_[entry.slot]->uses(record)) return entry.id;
  }
  return std::nullopt;
}

std::size_t CommandTable::unfinished_calls_on(int rank, std::uint64_t last) const noexcept {
  const std::uint64_t done = control_.worker(rank).done.load(std::memory_order_acquire);
  const auto count = std::ranges::count_if(entries_, [&](const Entry& entry) {
    const bool is_call = in_flight_[entry.slot]->function != nullptr;
    return entry.id > done && entry.id <= last && is_call && control_.command_in(entry.slot).ranks.has(rank);
  });
  return static_cast<std::size_t>(count);
}

std::optional<std::uint64_t> CommandTable::first_on(int rank) const noexcept {
  for (const Entry& entry : entries_) {
    if (control_.command_in(entry.slot).ranks.has(rank)) return entry.id;
  }
  return std::nullopt;
}

// ---- the next command -----------------------------------------------------------------------------------------

std::optional<std::uint64_t> CommandTable::first_in_full_inboxes(const protocol::RankSet& ranks) const noexcept {
  std::optional<std::uint64_t> first;
  for (const int rank : ranks) {
    const std::uint64_t last = inboxes_[static_cast<std::size_t>(rank)].last_in_next_place();
    if (is_in_flight(last) && (!first || last < *first)) first = last;
  }
  return first;
}

/// There is always one, because each command in flight takes a place of at least one inbox.
std::size_t CommandTable::take_slot() {
  if (free_slots_.empty()) add_slot();
  const std::size_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void CommandTable::add_slot() {
  in_flight_.push_back(std::make_unique<InFlight>());
  entries_.reserve(in_flight_.size());
  free_slots_.reserve(in_flight_.size());
  clocks_.reserve(in_flight_.size());
  free_slots_.push_back(in_flight_.size() - 1);
}

protocol::CommandHead& CommandTable::next(const protocol::RankSet& ranks, os::Milliseconds timeout) {
  if (!has_next_slot_) next_slot_ = take_slot();
  has_next_slot_ = true;
  static_cast<protocol::CommandHeader&>(draft_) = {.timeout_ms = timeout.count()};
  draft_.ranks = ranks;
  return draft_;
}

void CommandTable::depend_on(std::uint64_t id) {
  const Entry* const entry = find(id);
  if (entry == nullptr || in_flight_[entry->slot]->inherited || next_in_flight().depends_on(id)) return;
  if (control_.command_in(entry->slot).ranks.meets(draft_.ranks)) next_in_flight().dependencies.push_back({.id = id});
}

void CommandTable::wait_for(std::uint64_t id, int rank, Requirement requirement) {
  const Entry* const entry = find(id);
  if (entry == nullptr) return;
  const bool is_known_to_fail = in_flight_[entry->slot]->inherited != nullptr;
  next_in_flight().dependencies.push_back({id, rank, is_known_to_fail ? Requirement::end : requirement});
}

CommandTable::Aside CommandTable::set_aside() noexcept {
  has_next_slot_ = false;
  return {draft_, next_slot_};
}

void CommandTable::take_up(const Aside& aside) noexcept {
  if (has_next_slot_) free_slots_.push_back(next_slot_);
  has_next_slot_ = true;
  next_slot_ = aside.slot;
  draft_ = aside.draft;
}

std::size_t CommandTable::take_place(protocol::Command& command, int rank, std::uint64_t id) noexcept {
  const std::size_t place = inboxes_[static_cast<std::size_t>(rank)].add(id);
  command.places[static_cast<std::size_t>(rank)] = static_cast<std::uint8_t>(place);
  return place;
}

/// What only the master reads is written last, while the ranks already run the command.
std::uint64_t CommandTable::publish() noexcept {
  const std::uint64_t id = next_++;
  protocol::Command& command = control_.command_in(next_slot_);
  protocol::put_head(command, draft_);
  command.id = id;
  const std::uint64_t word = protocol::InboxEntry(id, next_slot_).word();
  os::Doorbell& to_workers = control_.header().to_workers;
  if (draft_.ranks.is_single()) {
    const int rank = draft_.ranks.first();
    const std::size_t place = take_place(command, rank, id);
    // With a release store, the rank could fetch the line of its inbox once more while the store waits for others.
    control_.inbox(rank, place).store(word, std::memory_order_seq_cst);
    to_workers.ring();
  } else {
    // All places are written before the first rank sees the command, because its peers look for its outbox.
    for (const int rank : draft_.ranks) take_place(command, rank, id);
    for (const int rank : draft_.ranks) {
      const std::size_t place = command.places[static_cast<std::size_t>(rank)];
      control_.inbox(rank, place).store(word, std::memory_order_release);
    }
    to_workers.ring_after_release();
  }
  clocks_.begin(next_slot_, os::Milliseconds(draft_.timeout_ms),
                entries_.empty() ? CallClocks::Before::nothing : CallClocks::Before::calls);
  entries_.push_back({id, next_slot_});
  if (!in_flight_[next_slot_]->made.empty()) ++makers_;
  has_next_slot_ = false;
  return id;
}

/// Calls that have been collected no longer count. Nor do calls whose ranks all run this one too: who depends on them
/// depends on this one, and this one on them.
void CommandTable::note_write(records::WriteLog& writes, std::uint64_t id) {
  const protocol::RankSet& ranks = command(id).ranks;
  std::erase_if(writes.calls, [&](std::uint64_t earlier) {
    return !is_in_flight(earlier) || ranks.includes(command(earlier).ranks);
  });
  writes.calls.push_back(id);
  std::erase_if(writes.copies, [&](const records::CopyRead& read) { return !is_in_flight(read.command); });
  std::erase_if(writes.failures, [](const records::WriteFailure& known) { return known.failure->is_seen; });
}

// ---- completion -----------------------------------------------------------------------------------------------

bool CommandTable::is_independent(std::uint64_t id) const noexcept {
  const auto& dependencies = in_flight(id).dependencies;
  return std::ranges::none_of(dependencies, [this](const EarlierCommand& earlier) {
    return earlier.must_succeed() && is_in_flight(earlier.id);
  });
}

bool CommandTable::is_collectable(std::uint64_t id) const {
  if (!is_complete(id)) return false;
  if (is_independent(id)) return !was_given_up(id);
  std::vector<bool> can_be(entries_.size());  // by position in entries_; dependencies come first
  const auto position_of = [&](std::uint64_t of) { return static_cast<std::size_t>(find(of) - entries_.data()); };
  for (std::size_t i = 0; i <= position_of(id); ++i) {
    const std::uint64_t command = entries_[i].id;
    bool fails_with_another = false;
    bool dependencies_can_be = true;
    for (const EarlierCommand& earlier : in_flight_[entries_[i].slot]->dependencies) {
      if (!earlier.must_succeed() || !is_in_flight(earlier.id)) continue;
      fails_with_another = fails_with_another || has_failed(earlier.id);
      dependencies_can_be = dependencies_can_be && can_be[position_of(earlier.id)];
    }
    can_be[i] = dependencies_can_be && is_complete(command) && (fails_with_another || !was_given_up(command));
  }
  return can_be[position_of(id)];
}

bool CommandTable::are_survivors_done() const noexcept {
  return std::ranges::all_of(entries_, [this](const Entry& entry) {
    const protocol::RankSet& ranks = control_.command_in(entry.slot).ranks;
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const protocol::WorkerSlot& slot = control_.worker(rank);
      const bool is_lost = slot.is_lost.load(std::memory_order_seq_cst) != 0;
      return is_lost || slot.done.load(std::memory_order_seq_cst) >= entry.id;
    });
  });
}

std::optional<std::uint64_t> CommandTable::first_collectable() const {
  for (const Entry& entry : entries_) {
    if (is_complete(entry.id) && is_independent(entry.id)) return entry.id;
  }
  return std::nullopt;
}

bool CommandTable::is_held_back(const Entry& entry) const noexcept {
  const auto& dependencies = in_flight_[entry.slot]->dependencies;
  return std::ranges::any_of(dependencies, [this](const EarlierCommand& earlier) {
    return earlier.rank != protocol::Dependency::kOwnRank &&
           control_.worker(earlier.rank).done.load(std::memory_order_acquire) < earlier.id;
  });
}

/// Tells the ranks of a command that was collected that they can free the memory of its outputs.
void CommandTable::note_consumed(const protocol::Command& command) noexcept {
  const bool has_outputs = may_have_outputs(command);
  for (const int rank : command.ranks) {
    InboxPlaces& inbox = inboxes_[static_cast<std::size_t>(rank)];
    if (has_outputs) {
      if (inbox.unconsumed == 0) ++unconsumed_;
      inbox.unconsumed = std::max(inbox.unconsumed, command.id);
    }
    if (inbox.unconsumed != 0) tell_consumed(rank);
  }
}

/// A rank frees outputs in the order of its commands, so this stops at the first command that has not been collected.
void CommandTable::tell_consumed(int rank) noexcept {
  InboxPlaces& inbox = inboxes_[static_cast<std::size_t>(rank)];
  const std::uint64_t consumed = first_on(rank).value_or(next_) - 1;
  control_.worker(rank).consumed.store(consumed, std::memory_order_release);
  if (consumed < inbox.unconsumed) return;
  inbox.unconsumed = 0;
  --unconsumed_;
}

/// Marks all commands that depend on this one, and those that depend on them. What they should make or bring does not
/// come into being.
void CommandTable::pass_on(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure) noexcept {
  for (const Entry& entry : entries_) {
    InFlight& call = *in_flight_[entry.slot];
    if (call.inherited || !call.depends_on(id)) continue;
    call.inherited = failure;
    control_.command_in(entry.slot).spoiled.store(entry.id, std::memory_order_seq_cst);
    for_each_value(call, [&](const std::shared_ptr<records::VariableRecord>& value, records::Destination to) {
      if (value->value) value->note_unfinished(to, entry.id, failure->error);
    });
    pass_on(entry.id, failure);
  }
}

void CommandTable::release(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure) noexcept {
  const Entry* const position = find(id);
  const Entry entry = *position;
  if (failure) pass_on(id, failure);
  if (position == &entries_.back()) entries_.pop_back();
  else entries_.erase(entries_.begin() + (position - entries_.data()));
  const protocol::Command& command = control_.command_in(entry.slot);
  if (unconsumed_ != 0 || may_have_outputs(command)) note_consumed(command);  // also for failed commands
  if (!in_flight_[entry.slot]->made.empty()) --makers_;
  in_flight_[entry.slot]->reset();
  free_slots_.push_back(entry.slot);
}

std::optional<std::uint64_t> CommandTable::maker_after(std::uint64_t id) const noexcept {
  const auto maker = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.id > id && !in_flight_[entry.slot]->made.empty(); });
  return maker == entries_.end() ? std::nullopt : std::optional(maker->id);
}

void CommandTable::fail_all(const std::exception_ptr& cause) noexcept {
  for (const Entry& entry : entries_) {
    CallResult* const result = in_flight_[entry.slot]->result;
    if (result == nullptr) continue;
    result->fail(cause);
    result->finished = true;
  }
}

void CommandTable::forget_all() noexcept {
  entries_.clear();
  makers_ = 0;
  for (auto& call : in_flight_) call->reset();
}

// ---- failures -------------------------------------------------------------------------------------------------

std::optional<int> CommandTable::first_failed_rank(std::uint64_t id) const noexcept {
  std::optional<int> first;
  for (const int rank : command(id).ranks) {
    const protocol::Outbox& box = outbox(id, rank);
    if (box.vote != protocol::Vote::failed || box.failed_ns == std::numeric_limits<std::int64_t>::max()) continue;
    if (!first || box.failed_ns < outbox(id, *first).failed_ns) first = rank;
  }
  return first;
}

bool CommandTable::has_lost_device(std::uint64_t id) const noexcept {
  const protocol::RankSet& ranks = command(id).ranks;
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const protocol::Outbox& box = outbox(id, rank);
    return box.vote == protocol::Vote::failed && box.is_fatal;
  });
}

std::optional<std::uint64_t> CommandTable::count_waited(os::Clock::duration waited) noexcept {
  const auto done_of = [this](int rank) { return control_.worker(rank).done.load(std::memory_order_acquire); };
  const auto ranks_of = [this](const Entry& entry) -> const protocol::RankSet& {
    return control_.command_in(entry.slot).ranks;
  };
  const auto is_held_back = [this](const Entry& entry) { return this->is_held_back(entry); };
  return clocks_.count(entries_, waited, ranks_of, done_of, is_held_back);
}

// ---- words ----------------------------------------------------------------------------------------------------

namespace {

/// What ranks of a call that failed may have done: stored their Update variables, begun the update of a train step.
enum class Updates : std::uint8_t { as_before, perhaps_begun, perhaps_committed };

void add_half_written(std::vector<std::string>& names, const InFlight& call, Updates updates) {
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const auto& name : call.writes) add(name);
  if (!call.function) return;
  const auto& arguments = call.function->signature.arguments;
  for (std::size_t i = 0; i < call.arguments_count; ++i) {
    const bool is_changed = arguments[i].kind == ArgumentKind::update && updates == Updates::perhaps_committed;
    const bool is_kept = updates == Updates::as_before && (call.function->written_by_update >> i & 1U) != 0;
    if ((arguments[i].kind == ArgumentKind::local && !is_kept) || is_changed) add(call.arguments[i].variable->name);
  }
}

}  // namespace

/// A rank that dies after it has voted does not keep the others from committing their updates. The votes of other nodes
/// are not looked at.
bool CommandTable::may_all_have_voted_ok(const Entry& entry) const {
  const protocol::Command& command = control_.command_in(entry.slot);
  if (command.ranks.is_single()) return false;  // the rank that died took its copy with it
  return std::all_of(command.ranks.begin(), command.ranks.end(), [&](int rank) {
    if (node_of(rank) != 0) return true;
    const bool has_voted = control_.worker(rank).vote.load(std::memory_order_acquire) >=
                           protocol::vote_word(entry.id, protocol::Vote::none);
    return has_voted && control_.outbox(command, rank).cast == protocol::Vote::ok;
  });
}

/// A rank that has succeeded has updated too.
bool CommandTable::are_all_before_update(const Entry& entry) const {
  const protocol::Command& command = control_.command_in(entry.slot);
  return std::all_of(command.ranks.begin(), command.ranks.end(), [&](int rank) {
    const bool is_done = control_.worker(rank).done.load(std::memory_order_acquire) >= entry.id;
    return is_done && control_.outbox(command, rank).is_before_update();
  });
}

std::vector<std::string> CommandTable::half_written_by(std::uint64_t id) const {
  std::vector<std::string> names;
  std::vector<std::uint64_t> failed{id};
  for (const Entry& entry : entries_) {
    const InFlight& call = *in_flight_[entry.slot];
    const bool fails_too = std::ranges::any_of(failed, [&](auto other) { return call.depends_on(other); });
    if (entry.id != id && !fails_too) continue;
    if (entry.id != id) failed.push_back(entry.id);
    // A call that depends on another one may have committed its updates before the other one failed.
    Updates updates = Updates::perhaps_committed;
    if (entry.id == id) updates = are_all_before_update(entry) ? Updates::as_before : Updates::perhaps_begun;
    add_half_written(names, call, updates);
  }
  return names;
}

std::vector<std::string> CommandTable::half_written() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    const InFlight& call = *in_flight_[entry.slot];
    const bool may_have_committed = !call.dependencies.empty() || may_all_have_voted_ok(entry);
    add_half_written(names, call, may_have_committed ? Updates::perhaps_committed : Updates::perhaps_begun);
  }
  return names;
}

}  // namespace syncrun::detail::master::calls
