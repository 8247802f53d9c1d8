// The master of the model: launcher/calls/call_table.cpp, launcher/calls/command_runner.cpp.

#include <algorithm>

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

// ---- what is in flight --------------------------------------------------------------------------------------------

bool Protocol::is_in_flight(const State& state, Byte id) noexcept {
  return id < state.next && (state.collected & bit(id)) == 0;
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
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id) || state.slot_of[id] != slot) continue;
    if (!is(Mistake::slot_is_free_when_one_rank_is_done)) return false;
    bool is_done_on_one = false;
    for (int rank = 0; rank < workers(); ++rank) {
      is_done_on_one = is_done_on_one || (has_rank(id, rank) && have_done(state, id, bit(rank)));
    }
    if (!is_done_on_one) return false;
  }
  return true;
}

/// True if each rank of the command has a free place in its inbox (CallTable::blocker).
bool Protocol::has_place(const State& state, Byte id) const noexcept {
  if (is(Mistake::writes_into_a_full_inbox)) return true;
  for (int rank = 0; rank < workers(); ++rank) {
    if (!has_rank(id, rank)) continue;
    const Byte last = state.workers[static_cast<std::size_t>(rank)].inbox[place_of(id, rank)].id;
    if (last == 0 || !is_in_flight(state, last)) continue;
    if (!is(Mistake::place_is_free_when_the_rank_is_done) || !have_done(state, last, bit(rank))) return false;
  }
  return true;
}

/// The call that CallTable::pass_on marks next, after `failed` has failed. 0 if all are marked.
Byte Protocol::next_to_mark(const State& state, Byte failed) const noexcept {
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id) || (state.dependencies[id] & bit(failed)) == 0) continue;
    if (state.inherited[id] == 0) return id;
    if (is(Mistake::marks_only_direct_dependents)) continue;
    if (const Byte later = next_to_mark(state, id); later != 0) return later;
  }
  return 0;
}

// ---- steps --------------------------------------------------------------------------------------------------------

void Protocol::step_master(const State& state, const Visit& visit) const {
  const Byte pc = state.master.pc;
  const bool publishes = pc >= expect_ends && pc <= ring_published;
  const Step step{Step::Who::master, publishes ? state.next : state.awaited, pc, state.master.sub};
  if (pc == decide) return decide_next(state, visit);
  if (pc == await_call) return await(state, step, visit);
  const auto is_dead = [](const Worker& worker) { return worker.life == Life::dead; };
  const bool all_have_ended = std::all_of(state.workers.begin(), state.workers.begin() + workers(), is_dead);
  if (pc == await_ends && !all_have_ended) return;
  State next = state;
  take_master_step(next);
  visit(next, step);
}

/// The program makes one more call, or waits for any call in flight. CommandRunner::await first waits for the calls on
/// which that call depends, which is the same as if the program did so. If an inbox is full, the program can only wait.
/// close() waits for all calls first.
void Protocol::decide_next(const State& state, const Visit& visit) const {
  bool is_idle = true;
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id)) continue;
    is_idle = false;
    Byte earlier = 1;
    while (earlier < id && ((state.dependencies[id] & bit(earlier)) == 0 || !is_in_flight(state, earlier))) ++earlier;
    if (earlier != id && !is(Mistake::collects_before_dependencies)) continue;
    State next = state;
    next.awaited = id;
    go(next.master, await_call);
    visit(next, {Step::Who::master, id, decide, Sub::look});
  }
  if (state.next < close_id() ? !has_place(state, state.next) : !is_idle) return;
  State next = state;
  publish_next(next);
  const Byte pc = state.next == close_id() ? expect_ends : put_entries;
  visit(next, {Step::Who::master, state.next, pc, Sub::look});
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
      const Byte id = next_to_mark(state, state.awaited);
      if (!is(Mistake::fails_no_dependents)) state.inherited[id] = state.results[state.awaited];
      if (!is(Mistake::marks_no_dependents)) state.pool[state.slot_of[id]].spoiled = id;
      if (next_to_mark(state, state.awaited) == 0 || is(Mistake::fails_no_dependents)) release(state);
      return;
    }
    case kill_all:  // first a signal to each worker, then their ends
      for (int rank = 0; rank < workers(); ++rank) {
        Worker& worker = state.workers[static_cast<std::size_t>(rank)];
        if (worker.life != Life::dead) return end(worker);
      }
      return go(state.master, over);
    default: return go(state.master, over);  // await_ends
  }
}

// ---- CallTable::publish -------------------------------------------------------------------------------------------

/// No rank knows yet that the slot has a new command. So the step also does what follows: the first entry of an inbox, or
/// the announcement that the workers will end.
void Protocol::publish_next(State& state) const {
  fill_slot(state);
  if (!is(Mistake::entries_before_places)) write_places(state);
  const Byte first = is(Mistake::rings_before_entries) ? ring_published : put_entries;
  go(state.master, state.next == close_id() ? Byte{expect_ends} : first);
  take_master_step(state);
}

/// The model takes the free slot with the lowest number. `failed` and `spoiled` keep their values: they name a command.
void Protocol::fill_slot(State& state) const {
  const Byte id = state.next;
  Byte free = 0;
  while (!is_free(state, free)) ++free;
  Slot& slot = state.pool[free];
  if (slot.id != 0) expect(state, have_done(state, slot.id, ranks_of(slot.id)), Property::slot_is_not_reused);
  slot.id = id;
  state.slot_of[id] = free;
  if (id != close_id()) find_dependencies(state);
}

/// SystemCommands::depend_on, CallTable::depend_on. The program has seen all failures that the master knows about: if it
/// had not, then a call that uses what a failed call writes would not be published at all.
void Protocol::find_dependencies(State& state) const {
  const Byte id = state.next;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if (state.results[earlier] >= kFailed) state.known[id] |= bit(state.results[earlier] - kFailed);
    if ((call(id).after & bit(earlier)) == 0 || !is_in_flight(state, earlier)) continue;
    const bool is_doomed = state.inherited[earlier] != 0 && !is(Mistake::depends_on_doomed_calls);
    const bool has_common_rank = (ranks_of(earlier) & ranks_of(id)) != 0;
    if (!is_doomed && has_common_rank) state.dependencies[id] |= bit(earlier);
  }
}

void Protocol::write_places(State& state) const {
  const Byte id = state.next;
  for (int rank = 0; rank < workers(); ++rank) {
    if (!has_rank(id, rank)) continue;
    state.pool[state.slot_of[id]].places[static_cast<std::size_t>(rank)] = place_of(id, rank);
  }
}

/// Writes the entry of the next rank.
void Protocol::write_entry(State& state) const {
  const Byte id = state.next;
  Byte& rank = state.master.scan;
  while (!has_rank(id, rank)) ++rank;
  Entry& entry = state.workers[rank].inbox[place_of(id, rank)];
  if (entry.id != 0) expect(state, have_done(state, entry.id, ranks_of(entry.id)), Property::place_is_not_reused);
  entry = {id, state.slot_of[id]};
  do ++rank;
  while (rank < workers() && !has_rank(id, rank));
  if (rank < workers()) return;
  if (is(Mistake::entries_before_places)) return go(state.master, put_places);
  if (is(Mistake::rings_before_entries)) return end_publishing(state);
  go(state.master, ring_published);
}

void Protocol::end_publishing(State& state) const {
  go(state.master, state.next == close_id() ? await_ends : decide);
  ++state.next;
}

// ---- CommandRunner::await, collect; CallTable::release ------------------------------------------------------------

void Protocol::await(const State& state, Step step, const Visit& visit) const {
  const Byte id = state.awaited;
  State next = state;
  const auto done = [&] {
    Byte& rank = next.master.scan;
    while (!has_rank(id, rank)) ++rank;
    if (state.workers[rank].done < id) return Answer::no;
    do ++rank;
    while (rank < workers() && !has_rank(id, rank));
    return rank == workers() ? Answer::yes : Answer::looking;
  };
  if (state.master.sub != Sub::asleep) {
    const Outcome outcome = wait(next, next.master, Bell::to_master, done, [&] { return state.lost != 0; });
    if (outcome == Outcome::ready) collect(next);
    if (outcome == Outcome::interrupted) {
      expect(next, state.deaths != 0, Property::loss_is_reported);
      for (Byte other = 1; other < state.next; ++other) {
        if (is_in_flight(state, other)) next.results[other] = kLost;
      }
      next.expects_ends = 1;
      go(next.master, kill_all);
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

/// collect and failure_of. The ranks of the command have stored `done`, so the values read here no longer change.
void Protocol::collect(State& state) const {
  const Byte id = state.awaited;
  const Byte slot = state.slot_of[id];
  const bool has_failed = state.pool[slot].failed == id || state.inherited[id] != 0;
  Byte reported = 0;
  for (int rank = 0; rank < workers(); ++rank) {
    if (!has_rank(id, rank)) continue;
    const Outbox& outbox = outbox_of(state, slot, rank);
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.vote != Vote::failed || outbox.failed_at == 0) continue;
    if (reported == 0 || outbox.failed_at < reported) reported = outbox.failed_at;
  }
  Byte result = kOk;
  if (has_failed) result = state.inherited[id] != 0 ? state.inherited[id] : static_cast<Byte>(kFailed + reported);
  check_result(state, id, result);
  state.results[id] = result;
  if (!has_failed) return release(state);
  if (next_to_mark(state, id) == 0) return release(state);
  go(state.master, mark_dependents);
}

/// Frees the slot and the places, which only the master knows about.
void Protocol::release(State& state) const {
  state.collected |= bit(state.awaited);
  state.known[state.awaited] = 0;  // no longer needed
  state.awaited = 0;
  go(state.master, decide);
}

// ---- properties ---------------------------------------------------------------------------------------------------

void Protocol::check_result(State& state, Byte id, Byte result) const {
  const bool is_ok = result == kOk;
  bool has_failed_dependency = false;
  bool is_reported_of_dependency = false;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if ((state.dependencies[id] & bit(earlier)) == 0 || state.results[earlier] < kFailed) continue;
    has_failed_dependency = true;
    is_reported_of_dependency = is_reported_of_dependency || state.results[earlier] == result;
  }
  const bool has_failed = state.failed[id] != 0 || has_failed_dependency;
  expect(state, is_ok == !has_failed, Property::failure_iff_one_failed);
  const bool is_known = result >= kFailed && (state.known[id] & bit(result - kFailed)) != 0;
  expect(state, !is_known, Property::no_known_failure);
  for (Byte later = static_cast<Byte>(id + 1); later < state.next; ++later) {
    const bool succeeded_before = (state.dependencies[later] & bit(id)) != 0 && state.results[later] == kOk;
    expect(state, is_ok || !succeeded_before, Property::failure_iff_one_failed);
  }
  if (is_ok) expect(state, state.ran[id] == ranks_of(id), Property::success_means_all_ran);
  const bool is_first =
      has_failed_dependency ? is_reported_of_dependency : is_ok || result == kFailed + state.first_failed_at[id];
  expect(state, is_first, Property::first_failure_is_reported);
  if (!scenario_.may_fail_late) check_commits(state, id, is_ok);  // after the vote, a single rank may still fail
}

/// A call may commit before a call fails on which it depends, if that one has a rank that is not in this call (see
/// docs/protocol.md).
void Protocol::check_commits(State& state, Byte id, bool is_ok) const {
  expect(state, state.committed[id] == 0 || state.committed[id] == ranks_of(id), Property::all_commit_or_none);
  const bool should_commit = is_ok && call(id).wants_vote;
  const bool is_exact = is_ok || state.failed[id] != 0 || includes_dependencies(state, id);
  expect(state, !is_exact || (state.committed[id] != 0) == should_commit, Property::commit_as_reported);
}

/// True if every rank of the calls on which this one depends, and of those on which these depend, is also in this one.
bool Protocol::includes_dependencies(const State& state, Byte id) const noexcept {
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if ((state.dependencies[id] & bit(earlier)) == 0) continue;
    if ((ranks_of(earlier) & ~ranks_of(id)) != 0 || !includes_dependencies(state, earlier)) return false;
  }
  return true;
}

}  // namespace model
