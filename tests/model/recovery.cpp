// Lost workers are replaced: master/session/recovery.cpp, forget_copy in master/values/value_copies.cpp.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

/// Recovery::await_survivors. The model looks at the loss and at `done` of a rank in one step.
void Protocol::await_survivors(const State& state, Step step, const Visit& visit) const {
  if (state.master.sub == Sub::asleep) return;
  State next = state;
  const auto done = [&] {
    Byte& rank = next.master.scan;
    Byte last = 0;
    for (Byte id = 1; id < state.next; ++id) {
      if (is_in_flight(state, id) && has_rank(state, id, rank)) last = id;
    }
    if ((state.is_lost & bit(rank)) == 0 && state.workers[rank].done < last) return Answer::no;
    return ++rank == workers() ? Answer::yes : Answer::looking;
  };
  const Outcome outcome = wait(next, next.master, Bell::to_master, done, [] { return false; });
  if (outcome == Outcome::ready) recover(next);
  visit(next, step);
}

/// The rest of Recovery::replace_lost. The survivors have nothing to do meanwhile, so it is one step.
void Protocol::recover(State& state) const {
  while (const Byte id = first_whole_call(state)) {
    find_result(state, id);
    while (state.results[id] != kOk && next_to_mark(state, id) != 0) mark(state, next_to_mark(state, id), id);
    forget(state, id);
    if (is_move(state, id)) mark_at_once(state, move_of(state, id).value);
  }
  const Byte unfinished = take_unfinished(state);
  const auto end_moves = [&] {
    for (Byte id = 1; id < state.next; ++id) {
      if ((unfinished & bit(id)) != 0) note_unfinished(state, id);
    }
  };
  // Before the copies of lost ranks are forgotten: a copy that a move has not brought is no new home.
  if (!is(Mistake::forgets_copies_before_moves)) end_moves();
  for (int rank = 0; rank < workers(); ++rank) {
    if ((state.is_lost & bit(rank)) == 0) continue;
    for (Byte value = 0; value < kMostValues; ++value) forget_copy(state, value, rank);
    state.shares = without(state.shares, rank);  // shares differ by rank, so no peer has this one
    start_worker(state, rank);
  }
  if (is(Mistake::forgets_copies_before_moves)) end_moves();
  for (std::size_t i = 0; i < scenario_.values.size(); ++i) {
    const Value& value = state.values[i];
    const bool has_home = value.home != kNowhere && value.has_failed == 0;
    const bool is_there = value.home == kHost ? value.host.is_valid != 0 : (value.valid & bit(value.home)) != 0;
    expect(state, !has_home || is_there, Property::home_is_valid);
  }
  for (Byte id = 1; id < state.next; ++id) {
    if ((unfinished & bit(id)) != 0) forget(state, id);
  }
  state.is_lost = state.lost = state.awaited = 0;
  go_on(state);
}

/// The command has failed, but no rank has a failure of its own, and no dependency has failed: a survivor gave it up,
/// because a rank was lost.
bool Protocol::was_given_up(State& state, Byte id) const {
  if (state.pool[state.slot_of[id]].failed != id || state.inherited[id] != 0) return false;
  for (int rank = 0; rank < workers(); ++rank) {
    if (has_rank(state, id, rank) && outbox_of(state, state.slot_of[id], rank).failed_at != 0) return false;
  }
  return true;
}

/// Recovery::first_whole_call.
Byte Protocol::first_whole_call(State& state) const {
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id) || first_to_collect(state, id) != id) continue;
    bool is_complete = true;
    for (int rank = 0; rank < workers(); ++rank) {
      const bool is_done = state.workers[static_cast<std::size_t>(rank)].done >= id;
      is_complete = is_complete && (is_done || !has_rank(state, id, rank));
    }
    if (is_complete && !was_given_up(state, id)) return id;
  }
  return 0;
}

/// CommandTable::take_unfinished. Returns the commands that fail with the loss.
Byte Protocol::take_unfinished(State& state) const {
  Byte unfinished = 0;
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_in_flight(state, id)) continue;
    const Byte needed = state.dependencies[id] | state.waits[id];
    const bool needs_lost_rank = (ranks_of(state, id) & state.is_lost) != 0 ||
                                 (is_move(state, id) && (state.is_lost & bit(move_of(state, id).from)) != 0);
    expect(state, needs_lost_rank || (needed & unfinished) != 0, Property::loss_is_exact);
    state.results[id] = kLost;
    unfinished |= bit(id);
  }
  return unfinished;
}

/// The rank was lost with its copy. The value is lost if there is no other one.
void Protocol::forget_copy(State& state, Byte index, int rank) const {
  Value& value = state.values[index];
  const auto at = static_cast<std::size_t>(rank);
  value.contents[at] = value.spare[at] = value.written[at] = value.brought[at] = value.used[at] = value.marked[at] =
      value.readers[at] = 0;
  value.valid = without(value.valid, rank);
  const auto is_there = [&](Byte other) {
    if ((value.valid & bit(other)) == 0) return false;
    if (!is(Mistake::new_home_is_not_claimed)) return claim(state, index, other);
    if (value.spare[other] == kDropped) value.valid = without(value.valid, other);
    return value.spare[other] != kDropped;
  };
  if (value.home >= kHost || (value.home == rank ? is(Mistake::lost_home_stays) : is_there(value.home))) return;
  value.home = kHost;
  for (Byte other = 0; other < workers() && value.home == kHost; ++other) {
    if (is_there(other)) value.home = other;
  }
  if (value.valid != 0 || value.host.is_valid != 0 || value.has_failed != 0) return;
  value.has_failed = 1;
  for (int other = 0; other < workers(); ++other) {
    if ((state.is_lost & bit(other)) != 0) continue;
    const Byte contents = value.contents[static_cast<std::size_t>(other)];
    expect(state, !is_as_written(state, state.next, index, contents), Property::value_is_not_given_up);
  }
}

/// Recovery::clear_slot, and the start of the new worker. It is as if the rank were done with all published commands.
void Protocol::start_worker(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const auto last = static_cast<Byte>(state.next - 1);
  end(worker);
  worker.life = Life::alive;
  worker.id = worker.done = worker.vote = worker.collective_command = last;
  worker.collective_step = kLeft;
  worker.watcher = watching;
  for (Byte id = 1; id < state.next; ++id) worker.received += has_rank(state, id, rank) ? 1 : 0;
  go(worker.process, await_next);
}

}  // namespace model
