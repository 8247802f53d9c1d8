// The master: commands, their results, and what depends on them (master/calls).

#include <algorithm>

#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

// ---- what the master knows --------------------------------------------------------------------------------------

bool Protocol::is_in_flight(const State& state, Byte id) const noexcept {
  return id != 0 && id < state.master.next && (state.master.collected & bit(id)) == 0;
}

Byte Protocol::done_of(const State& state, int rank) const noexcept {
  const Rank& worker = rank_in(state, rank);
  return node_of(rank) == 0 ? worker.done : worker.seen_done;
}

bool Protocol::is_complete(const State& state, Byte id) const noexcept {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (has_rank(id, rank) && done_of(state, rank) < id) return false;
  }
  return true;
}

/// Only the slots of the master say which are free. All nodes use the same ones.
bool Protocol::is_free(const State& state, Byte slot) const noexcept {
  for (Byte id = 1; id < state.master.next; ++id) {
    if (!is_in_flight(state, id) || state.master.slot_of[id] != slot) continue;
    const auto is_done = [&](int rank) { return !has_rank(id, rank) || done_of(state, rank) >= id; };
    bool is_one_node_done = false;
    for (int node = 0; node < nodes(); ++node) {
      bool are_done = (ranks_of(id) & ranks_on(node)) != 0;
      for (int rank = 0; rank < ranks(); ++rank) are_done = are_done && (node_of(rank) != node || is_done(rank));
      is_one_node_done = is_one_node_done || are_done;
    }
    if (!is(Mistake::slot_is_free_when_one_node_is_done) || !is_one_node_done) return false;
  }
  return true;
}

bool Protocol::is_independent(const State& state, Byte id) const noexcept {
  if (is(Mistake::collects_before_dependencies)) return true;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    if ((state.master.dependencies[id] & bit(earlier)) != 0 && is_in_flight(state, earlier)) return false;
  }
  return true;
}

/// CommandTable::blocker: the credit of a rank is its places. The command that was last in the next place was collected.
bool Protocol::has_place(const State& state, Byte id) const noexcept {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (has_rank(id, rank) && !has_place_on(state, id, rank)) return false;
  }
  return true;
}

bool Protocol::has_place_on(const State& state, Byte id, int rank) const noexcept {
  int places = scenario_.places;
  int commands = 0;
  for (Byte earlier = static_cast<Byte>(id - 1); earlier > 0; --earlier) {
    if (!is_in_flight(state, earlier)) continue;
    if (is(Mistake::credit_returns_at_done) && done_of(state, rank) >= earlier) continue;
    const bool counts = is(Mistake::credit_per_node)
                            ? (ranks_of(earlier) & ranks_on(node_of(rank))) != 0
                            : has_rank(earlier, rank) && place_of(earlier, rank) == place_of(id, rank);
    commands += counts ? 1 : 0;
  }
  if (!is(Mistake::credit_per_node)) return commands == 0;
  for (int other = 0; other < ranks(); ++other)
    places += other != rank && node_of(other) == node_of(rank) ? scenario_.places : 0;
  return commands < places;
}

// ---- steps --------------------------------------------------------------------------------------------------------

void Protocol::step_master(const State& state, const Visit& visit) const {
  if (state.master.pc == decide) return decide_next(state, visit);
  if (!can_go_on(state)) return;
  State next = state;
  go_on(next);
  visit(next, {Step::Who::master, 0, state.master.pc, state.master.awaited});
}

/// The program makes one more call, or waits for any call in flight after those on which it depends. close() waits for
/// all calls first.
void Protocol::decide_next(const State& state, const Visit& visit) const {
  bool is_idle = true;
  for (Byte id = 1; id < state.master.next; ++id) {
    if (!is_in_flight(state, id)) continue;
    is_idle = false;
    if (!is_independent(state, id)) continue;
    const bool is_lost = state.master.lost != 0;
    if (!is_complete(state, id) && !is_lost) continue;  // a wait changes nothing until it ends
    State next = state;
    next.master.awaited = id;
    await(next);
    visit(next, {Step::Who::master, 0, await_call, id});
  }
  const bool is_last = is_close(state.master.next);
  const bool may_close = is_idle || is(Mistake::closes_before_results);
  if (!has_place(state, state.master.next) || (is_last && !may_close)) return;
  State next = state;
  if (is_last) close(next);
  else publish(next);
  visit(next, {Step::Who::master, 0, decide, state.master.next});
}

/// CommandDispatcher::await, after its wait.
void Protocol::await(State& state) const {
  const Byte id = state.master.awaited;
  state.master.awaited = 0;
  if (is_complete(state, id)) return collect(state, id);
  end_with_loss(state);
}

bool Protocol::can_go_on(const State& state) const noexcept {
  const Master& master = state.master;
  const auto refused = [](const Node& node) { return node.has_refused != 0 || node.is_lost != 0; };
  const bool has_failed = std::any_of(state.nodes.begin(), state.nodes.end(), refused);
  switch (master.pc) {
    case await_devices: return has_failed || have_all_answered(state);
    case await_ready: return master.fault != 0 || master.lost != 0 || have_all_answered(state);
    case await_end_of_lost: {
      const int rank = master.lost - 1;
      const bool is_node_lost = node_in(state, node_of(rank)).is_lost != 0;
      const bool is_known = node_of(rank) == 0 || rank_in(state, rank).seen_end != End::none;
      return is_known || (is_node_lost && !is(Mistake::awaits_the_end_on_a_lost_node));
    }
    case await_ends: {
      if (master.fault != 0) return true;
      for (int rank = 0; rank < ranks(); ++rank) {
        const Rank& worker = rank_in(state, rank);
        if (node_of(rank) == 0 ? worker.life != Life::dead : worker.seen_end == End::none) return false;
      }
      return true;
    }
    case await_ended: return have_all_nodes(state, &Node::has_ended);
    default: return true;
  }
}

void Protocol::go_on(State& state) const {
  switch (state.master.pc) {
    case open_session: return open(state);
    case await_devices: return start(state);
    case await_ready:
      if (state.master.fault != 0 || state.master.lost != 0) return end_with_loss(state);
      state.master.pc = decide;
      return;
    case await_end_of_lost: return end_session(state, Reason::rank_lost);
    case await_ends: return await_all_ends(state);
    case await_ended: return go_to_next_session(state);
    default: return say_farewell(state);
  }
}

// ---- CommandTable::publish, RemoteNodes::publish ---------------------------------------------------------------------

/// One step: only workers of the master's node see what the master writes before it sends the messages, and the other
/// model has all of that.
void Protocol::publish(State& state) const {
  Master& master = state.master;
  const Byte id = master.next++;
  const Byte slot = take_slot(state);
  master.slot_of[id] = slot;
  find_dependencies(state, id);
  node_in(state, 0).slots[slot].id = id;
  for_each_rank_of(id, 0, [&](int rank) {
    Entry& entry = rank_in(state, rank).inbox[place_of(id, rank)];
    expect(state, entry.id == 0 || rank_in(state, rank).done >= entry.id, Property::place_is_not_reused);
    entry = {id, slot};
  });
  for (int node = 1; node < nodes(); ++node) {
    if ((ranks_of(id) & ranks_on(node)) != 0) send_command(state, node, id);
  }
  Byte known = static_cast<Byte>(id + 1);
  for (int node = 1; node < nodes(); ++node) known = std::min(known, node_in(state, node).told);
  master.first_change = is(Mistake::changes_are_forgotten_early) ? static_cast<Byte>(id + 1) : known;
  if (master.late_spoils != 0) send_spoils(state);
  master.late_spoils = 0;
}

Byte Protocol::take_slot(const State& state) const noexcept {
  Byte slot = 0;
  while (!is_free(state, slot)) ++slot;
  return slot;
}

/// Of the commands in flight that have a rank in common with this one.
void Protocol::find_dependencies(State& state, Byte id) const {
  for (Byte earlier = 1; earlier < id; ++earlier) {
    const bool uses = (call(id).after & bit(earlier)) != 0 && (ranks_of(id) & ranks_of(earlier)) != 0;
    if (uses && is_in_flight(state, earlier) && state.master.inherited[earlier] == 0)
      state.master.dependencies[id] |= bit(earlier);
  }
}

// ---- CommandDispatcher::collect ---------------------------------------------------------------------------------------

/// One step: nobody else reads what the master writes here but workers of its own node.
void Protocol::collect(State& state, Byte id) const {
  find_result(state, id);
  if (state.master.results[id] != kOk) mark_dependents(state, id);
  release(state, id);
  if (state.master.results[id] == kOk || is(Mistake::sends_no_spoil)) return;
  if (is(Mistake::spoil_after_the_next_command)) state.master.late_spoils = 1;
  else send_spoils(state);
}

void Protocol::find_result(State& state, Byte id) const {
  Master& master = state.master;
  const bool has_failed = node_in(state, 0).slots[master.slot_of[id]].failed == id || master.inherited[id] != 0;
  bool is_reported = false;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!has_rank(id, rank)) continue;
    const Rank& worker = rank_in(state, rank);
    const Outcome& report = (node_of(rank) == 0 ? worker.outboxes : worker.seen)[place_of(id, rank)];
    const bool is_of_this = report.command == id || !call(id).writes_outbox;
    expect(state, is_of_this, Property::outbox_is_of_this_command);
    is_reported = is_reported || (report.vote == Vote::failed && report.is_own != 0);
  }
  bool has_failed_dependency = false;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    const bool depends = (master.dependencies[id] & bit(earlier)) != 0;
    has_failed_dependency = has_failed_dependency || (depends && master.results[earlier] == kFailed);
  }
  const bool should_fail = state.failed[id] != 0 || has_failed_dependency;
  expect(state, has_failed == should_fail, Property::failure_iff_one_failed);
  expect(state, !has_failed || is_reported || master.inherited[id] != 0, Property::failure_is_named);
  expect(state, has_failed || state.ran[id] == ranks_of(id), Property::success_means_all_ran);
  for (Byte later = static_cast<Byte>(id + 1); later < master.next; ++later) {
    const bool succeeded_before = (master.dependencies[later] & bit(id)) != 0 && master.results[later] == kOk;
    expect(state, !has_failed || !succeeded_before, Property::failure_iff_one_failed);
  }
  master.results[id] = has_failed ? kFailed : kOk;
}

/// CommandTable::pass_on.
void Protocol::mark_dependents(State& state, Byte id) const {
  Master& master = state.master;
  for (Byte later = static_cast<Byte>(id + 1); later < master.next; ++later) {
    if (!is_in_flight(state, later) || master.inherited[later] != 0) continue;
    if ((master.dependencies[later] & bit(id)) == 0) continue;
    master.inherited[later] = 1;
    node_in(state, 0).slots[master.slot_of[later]].spoiled = later;
    mark_dependents(state, later);
  }
}

/// CommandDispatcher::note_spoiled: again for all that are in flight.
void Protocol::send_spoils(State& state) const {
  for (Byte id = 1; id < state.master.next; ++id) {
    const Byte slot = state.master.slot_of[id];
    if (!is_in_flight(state, id) || node_in(state, 0).slots[slot].spoiled != id) continue;
    for (int node = 1; node < nodes(); ++node) {
      if ((ranks_of(id) & ranks_on(node)) == 0 || node_in(state, node).is_lost != 0) continue;
      Message message{.kind = Kind::spoil, .session = state.master.session};
      message.id = id;
      message.slot = slot;
      send_to_agent(state, node, message);
    }
  }
}

/// CommandTable::release, note_consumed.
void Protocol::release(State& state, Byte id) const {
  state.master.collected |= bit(id);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!has_rank(id, rank)) continue;
    Byte first = 1;
    while (first < state.master.next && !(is_in_flight(state, first) && has_rank(first, rank))) ++first;
    const auto consumed = static_cast<Byte>(first - 1);
    if (node_of(rank) == 0) rank_in(state, rank).consumed = consumed;
    else rank_in(state, rank).seen_consumed = consumed;
  }
}

}  // namespace model::nodes
