// The master of the model: master/calls/command_table.cpp, master/dispatch/command_dispatcher.cpp.

#include <algorithm>

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

// ---- what is in flight --------------------------------------------------------------------------------------------

bool Protocol::is_in_flight(const State& state, Byte id) noexcept {
  return id != 0 && id < state.next && (state.collected & bit(id)) == 0;
}

/// True if these ranks, as far as they are alive, have done the command.
bool Protocol::have_done(const State& state, Byte id, Byte ranks) const noexcept {
  for (int rank = 0; rank < workers(); ++rank) {
    const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
    if ((ranks & bit(rank)) != 0 && worker.life != Life::dead && worker.done < id) return false;
  }
  return true;
}

bool Protocol::is_free(const State& state, Byte slot) const noexcept {
  if (state.aside == slot + 1) return false;
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id) || state.slot_of[id] != slot) continue;
    if (!is(Mistake::slot_is_free_when_one_rank_is_done)) return false;
    bool is_done_on_one = false;
    for (int rank = 0; rank < workers(); ++rank) {
      is_done_on_one = is_done_on_one || (has_rank(state, id, rank) && have_done(state, id, bit(rank)));
    }
    if (!is_done_on_one) return false;
  }
  return true;
}

/// As CommandTable::blocker: the earliest command in flight that occupies the next place in the inbox of one of these
/// ranks. Returns 0 if all these places are free.
Byte Protocol::blocker(const State& state, Byte ranks) const noexcept {
  if (is(Mistake::writes_into_a_full_inbox)) return 0;
  Byte first = 0;
  for (int rank = 0; rank < workers(); ++rank) {
    if ((ranks & bit(rank)) == 0) continue;
    const Byte last = state.workers[static_cast<std::size_t>(rank)].inbox[place_of(state, state.next, rank)].id;
    if (!is_in_flight(state, last) || (first != 0 && first < last)) continue;
    if (!is(Mistake::place_is_free_when_the_rank_is_done) || !have_done(state, last, bit(rank))) first = last;
  }
  return first;
}

bool Protocol::has_place(const State& state, Byte ranks) const noexcept { return blocker(state, ranks) == 0; }

/// CommandDispatcher::await first waits for the commands on which this one depends.
Byte Protocol::first_to_collect(const State& state, Byte id) noexcept {
  for (Byte earlier = 1; earlier < id; ++earlier) {
    const bool is_before = (state.dependencies[id] & bit(earlier)) != 0 && is_in_flight(state, earlier);
    if (is_before) return first_to_collect(state, earlier);
  }
  return id;
}

/// The call that CommandTable::pass_on marks next, after `failed` has failed. 0 if all are marked.
Byte Protocol::next_to_mark(const State& state, Byte failed) const noexcept {
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id) || (state.dependencies[id] & bit(failed)) == 0) continue;
    if (is(Mistake::moves_are_not_marked) && is_move(state, id)) continue;
    if (state.inherited[id] == 0) return id;
    if (is(Mistake::marks_only_direct_dependents)) continue;
    if (const Byte later = next_to_mark(state, id); later != 0) return later;
  }
  return 0;
}

// ---- steps --------------------------------------------------------------------------------------------------------

void Protocol::step_master(const State& state, const Visit& visit) const {
  const Byte pc = state.master.pc;
  const bool publishes = (pc >= expect_ends && pc <= ring_published) || pc == begin_move || pc == begin_call;
  const Step step{Step::Who::master, publishes ? state.next : state.awaited, pc, state.master.sub};
  if (pc == decide) return decide_next(state, visit);
  if (pc == await_call) return await(state, step, visit);
  if (pc == await_others) return await_survivors(state, step, visit);
  const auto is_dead = [](const Worker& worker) { return worker.life == Life::dead; };
  const bool all_have_ended = std::all_of(state.workers.begin(), state.workers.begin() + workers(), is_dead);
  if (pc == await_ends && !all_have_ended) return;
  State next = state;
  take_master_step(next);
  visit(next, step);
}

/// The program makes one more call, or waits for any call in flight. CommandDispatcher::await first waits for the calls on
/// which that call depends, which is the same as if the program did so. If an inbox is full, the program can only wait.
/// close() waits for all calls first.
void Protocol::decide_next(const State& state, const Visit& visit) const {
  bool is_idle = true;
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id)) continue;
    is_idle = false;
    if (first_to_collect(state, id) != id && !is(Mistake::collects_before_dependencies)) continue;
    State next = state;
    next.awaited = id;
    go(next.master, await_call);
    visit(next, {Step::Who::master, id, decide, Sub::look});
  }
  const bool is_last = state.calls == calls_count();
  const auto must_wait = [&] {
    const Call& call = next_call(state);
    const bool is_call = call.to_host == 0 && !call.only_brings;
    return is_call && !has_place(state, ranks_of(call));
  };
  if (is_last ? !is_idle : must_wait()) return;
  State next = state;
  Step step{Step::Who::master, state.next, is_last ? Byte{expect_ends} : Byte{put_entries}, Sub::look};
  if (!is_last && next_call(state).uses_shares && state.checked == 0) {
    // SystemCommands::settle: the check comes after the last wait, and the call is published at once. With the mistake, the
    // program can still wait after it.
    const bool may_run = has_shares(state, next_call(state));
    next.checked = may_run && is(Mistake::checks_before_the_wait) ? 1 : 0;
    if (!may_run) refuse_call(next);
    if (next.checked != 0 || !may_run) return visit(next, {Step::Who::master, state.next, decide, Sub::look});
  }
  next.checked = 0;
  if (is_last) publish_next(next, kClose);
  else if (values_of(next_call(state)) == 0) publish_next(next, static_cast<Byte>(state.calls + 1));
  else {
    begin_call_with_values(next);
    step.pc = next.master.pc;
    const bool has_begun = step.pc != decide && step.pc != await_call;
    if (has_begun) take_master_step(next);  // the master has done nothing yet that other processes can see
  }
  visit(next, step);
}

bool Protocol::has_shares(const State& state, const Call& call) const noexcept {
  return (ranks_of(call) & ~state.shares) == 0;
}

/// Takes one step that other processes can see. The private work of the master before and after it is part of the step.
void Protocol::take_master_step(State& state) const {
  switch (state.master.pc) {
    case expect_ends: state.expects_ends = 1; return go(state.master, put_entries);
    case put_places: write_places(state); return go(state.master, ring_published);
    case put_entries: return write_entry(state);
    case ring_published:
      if (!ring(state, state.master, Bell::to_workers)) return;
      if (is(Mistake::rings_before_entries)) return go(state.master, put_entries);
      return end_publishing(state);
    case mark_dependents: {
      if (const Byte id = next_to_mark(state, state.awaited); id != 0) mark(state, id, state.awaited);
      if (next_to_mark(state, state.awaited) == 0 || is(Mistake::fails_no_dependents)) release(state);
      return;
    }
    case kill_all:  // first a signal to each worker, then their ends
      for (int rank = 0; rank < workers(); ++rank) {
        Worker& worker = state.workers[static_cast<std::size_t>(rank)];
        if (worker.life != Life::dead) return end(worker);
      }
      return go(state.master, over);
    case claim_copies: return claim_copy(state);
    case claim_homes: claim_next_home(state, next_move(state).value); return bring_copy(state);
    case begin_move: {
      const Move move = next_move(state);
      return publish_next(state, static_cast<Byte>(kMove | move.value << 4U | move.from << 2U | move.to));
    }
    case begin_call: return publish_next(state, static_cast<Byte>(state.calls + 1));
    case mark_copies: return mark_copy(state);
    default: return go(state.master, over);  // await_ends
  }
}

// ---- CommandTable::publish -------------------------------------------------------------------------------------------

/// No rank knows yet that the slot has a new command. So the step also does what follows: the first entry of an inbox, or
/// the announcement that the workers will end.
void Protocol::publish_next(State& state, Byte what) const {
  state.what[state.next] = what;
  fill_slot(state);
  if (!is(Mistake::entries_before_places)) write_places(state);
  const Byte first = is(Mistake::rings_before_entries) ? ring_published : put_entries;
  go(state.master, what == kClose ? Byte{expect_ends} : first);
  take_master_step(state);
}

/// `failed` and `spoiled` keep their values: they name a command.
void Protocol::fill_slot(State& state) const {
  const Byte id = state.next;
  const bool was_aside = state.aside != 0 && !is_move(state, id);
  const Byte free = was_aside ? static_cast<Byte>(state.aside - 1) : take_slot(state);
  if (was_aside) state.aside = 0;
  Slot& slot = state.pool[free];
  if (slot.id != 0) expect(state, have_done(state, slot.id, ranks_of(state, slot.id)), Property::slot_is_not_reused);
  slot.id = id;
  state.slot_of[id] = free;
  if (is_close(state, id)) return;
  find_dependencies(state);
  if (is_move(state, id)) find_dependencies_of_move(state);
  else if (values_of(call(state, id)) != 0) find_dependencies_on_values(state);
}

/// The free slot with the lowest number. There is one for each place of an inbox, and one more.
Byte Protocol::take_slot(State& state) const {
  const int slots = workers() * scenario_.places + (is(Mistake::no_slot_for_a_command_put_aside) ? 0 : 1);
  Byte free = 0;
  while (!is_free(state, free)) ++free;
  expect(state, free < std::min(slots, kMostSlots), Property::there_is_a_slot);
  return std::min<Byte>(free, kMostSlots - 1);
}

/// SystemCommands::depend_on, CommandTable::depend_on. The program has seen all failures that the master knows about: if it
/// had not, then a call that uses what a failed call writes would not be published at all.
void Protocol::find_dependencies(State& state) const {
  const Byte id = state.next;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if (state.results[earlier] >= kFailed) state.known[id] |= bit(state.results[earlier] - kFailed);
    if (is_move(state, earlier) || (call(state, id).after & bit(state.what[earlier])) == 0) continue;
    if (!is_in_flight(state, earlier)) continue;
    const bool is_doomed = state.inherited[earlier] != 0 && !is(Mistake::depends_on_doomed_calls);
    const bool has_common_rank = (ranks_of(state, earlier) & ranks_of(state, id)) != 0;
    if (!is_doomed && has_common_rank) state.dependencies[id] |= bit(earlier);
  }
}

void Protocol::write_places(State& state) const {
  const Byte id = state.next;
  for (int rank = 0; rank < workers(); ++rank) {
    if (!has_rank(state, id, rank)) continue;
    state.pool[state.slot_of[id]].places[static_cast<std::size_t>(rank)] = place_of(state, id, rank);
  }
}

/// Writes the entry of the next rank.
void Protocol::write_entry(State& state) const {
  const Byte id = state.next;
  Byte& rank = state.master.scan;
  while (!has_rank(state, id, rank)) ++rank;
  Entry& entry = state.workers[rank].inbox[place_of(state, id, rank)];
  if (entry.id != 0)
    expect(state, have_done(state, entry.id, ranks_of(state, entry.id)), Property::place_is_not_reused);
  entry = {id, state.slot_of[id]};
  do ++rank;
  while (rank < workers() && !has_rank(state, id, rank));
  if (rank < workers()) return;
  if (is(Mistake::entries_before_places)) return go(state.master, put_places);
  if (is(Mistake::rings_before_entries)) return end_publishing(state);
  go(state.master, ring_published);
}

void Protocol::end_publishing(State& state) const {
  const Byte id = state.next++;
  if (is_close(state, id)) return go(state.master, await_ends);
  if (is_move(state, id)) return note_move(state, id);
  ++state.calls;
  if (values_of(call(state, id)) != 0) return note_use(state, id);
  go(state.master, decide);
}

// ---- CommandDispatcher::await, collect; CommandTable::release ------------------------------------------------------------

void Protocol::await(const State& state, Step step, const Visit& visit) const {
  const Byte id = state.awaited;
  State next = state;
  const auto done = [&] {
    Byte& rank = next.master.scan;
    while (!has_rank(state, id, rank)) ++rank;
    if (state.workers[rank].done < id) return Answer::no;
    do ++rank;
    while (rank < workers() && !has_rank(state, id, rank));
    return rank == workers() ? Answer::yes : Answer::looking;
  };
  if (state.master.sub != Sub::asleep) {
    const Outcome outcome = wait(next, next.master, Bell::to_master, done, [&] { return state.lost != 0; });
    if (outcome == Outcome::ready) collect(next);
    if (outcome == Outcome::interrupted) {
      expect(next, state.deaths != 0, Property::loss_is_reported);
      if (scenario_.respawns) go(next.master, await_others);
      else end_with_loss(next);
    }
    visit(next, step);
  }
  // The deadline. In the model it passes only if a function never returns: no other wait may need it.
  bool is_one_hung = false;
  for (int rank = 0; rank < workers(); ++rank) {
    is_one_hung = is_one_hung || state.workers[static_cast<std::size_t>(rank)].life == Life::hung;
  }
  if (!is_one_hung) return;
  next = state;
  next.expects_ends = 1;
  go(next.master, kill_all);
  visit(next, step);
}

void Protocol::end_with_loss(State& state) const {
  for (Byte other = 1; other < state.next; ++other) {
    if (is_in_flight(state, other)) state.results[other] = kLost;
  }
  state.expects_ends = 1;
  go(state.master, kill_all);
}

void Protocol::collect(State& state) const {
  const Byte id = state.awaited;
  const bool is_lost = scenario_.respawns && !is(Mistake::collects_what_was_given_up) && was_given_up(state, id);
  if (is_lost) return go(state.master, await_others);
  find_result(state, id);
  if (state.results[id] == kOk || next_to_mark(state, id) == 0) return release(state);
  go(state.master, mark_dependents);
}

/// collect and failure_of. The ranks of the command have stored `done`, so the values read here no longer change.
void Protocol::find_result(State& state, Byte id) const {
  const Byte slot = state.slot_of[id];
  const bool has_failed = state.pool[slot].failed == id || state.inherited[id] != 0;
  Byte reported = 0;
  for (int rank = 0; rank < workers(); ++rank) {
    if (!has_rank(state, id, rank)) continue;
    const Outbox& outbox = outbox_of(state, slot, rank);
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.vote != Vote::failed || outbox.failed_at == 0) continue;
    if (reported == 0 || outbox.failed_at < reported) reported = outbox.failed_at;
  }
  Byte result = kOk;
  if (has_failed) result = state.inherited[id] != 0 ? state.inherited[id] : static_cast<Byte>(kFailed + reported);
  check_result(state, id, result);
  state.results[id] = result;
  if (has_failed) return note_unfinished(state, id);
  if (!is_move(state, id) || move_of(state, id).to != kHost) return;
  const Move move = move_of(state, id);
  const HostCopy& host = state.values[move.value].host;
  const bool can_be_read = host.is_valid != 0 && host.written == id;
  expect(state, !can_be_read || is_as_written(state, state.next, move.value, host.contents),
         Property::copy_is_as_written);
}

/// One step of CommandTable::pass_on.
void Protocol::mark(State& state, Byte id, Byte failed) const {
  if (!is(Mistake::fails_no_dependents)) state.inherited[id] = state.results[failed];
  if (!is(Mistake::marks_no_dependents)) state.pool[state.slot_of[id]].spoiled = id;
  if (!is(Mistake::depends_on_doomed_writes)) note_unfinished(state, id);
}

/// Frees the slot and the places, which only the master knows about.
void Protocol::release(State& state) const {
  const Byte id = state.awaited;
  forget(state, id);
  state.awaited = 0;
  if (is_move(state, id)) note_arrival(state, id);
  else go_on(state);
}

void Protocol::forget(State& state, Byte id) const {
  state.collected |= bit(id);
  state.known[id] = 0;  // no longer needed
  for (Value& value : state.values) {
    for (Byte& written : value.written) {
      if (written == id) written = 0;
    }
    for (Byte& brought : value.brought) {
      if (brought == id) brought = 0;
    }
    value.risky_moves = without(value.risky_moves, id);
    for (Byte& readers : value.readers) readers = without(readers, id);
    value.host.readers = without(value.host.readers, id);
    if (value.host.written == id) value.host.written = value.host.by = 0;
  }
}

/// The program goes on, or the call that was put aside.
void Protocol::go_on(State& state) const {
  go(state.master, decide);
  if (state.is_writing != 0) bring_copies(state);
}

}  // namespace model
