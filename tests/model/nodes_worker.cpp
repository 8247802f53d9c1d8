// A worker of a session on several nodes. The other model (worker.cpp) has the rest of it: how it waits and votes.

#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

void Protocol::step_worker(const State& state, int rank, const Visit& visit) const {
  const Rank& worker = rank_in(state, rank);
  const Step step{Step::Who::worker, static_cast<Byte>(rank), worker.pc, worker.id};
  switch (worker.pc) {
    case await_command: return await(state, rank, visit);
    case run: return run_command(state, rank, step, visit);
    default: break;
  }
  State next = state;
  if (worker.pc == read_spoiled) check_spoiled(next, rank);
  else finish(next, rank);
  visit(next, step);
}

/// A worker also ends if a peer of its node was lost. If the command has no dependencies, the step goes on to its run:
/// no other process sees anything of it before.
void Protocol::await(const State& state, int rank, const Visit& visit) const {
  const Rank& worker = rank_in(state, rank);
  const int node = node_of(rank);
  const Entry entry = worker.inbox[static_cast<std::size_t>(worker.received % scenario_.places)];
  const bool has_command = entry.id > worker.id;
  if (!has_command && (node == 0 || node_in(state, node).first_lost == 0)) return;
  const Step step{Step::Who::worker, static_cast<Byte>(rank), await_command, has_command ? entry.id : Byte{0}};
  State next = state;
  if (has_command) {
    begin_command(next, rank);
  } else {
    rank_in(next, rank).life = Life::dead;
    rank_in(next, rank).end = End::after_a_loss;
  }
  const bool goes_on = rank_in(next, rank).pc == run && !is(Mistake::reports_what_was_only_taken);
  if (goes_on) return run_command(next, rank, step, visit);
  visit(next, step);
}

void Protocol::check_spoiled(State& state, int rank) const {
  Rank& worker = rank_in(state, rank);
  const Node& node = node_in(state, node_of(rank));
  if (node.slots[worker.slot].spoiled == worker.id) worker.skips = 1;
  const bool is_known = (node.spoiled & bit(worker.id)) != 0;
  expect(state, !is_known || worker.skips != 0, Property::spoiled_is_not_run);
  worker.pc = run;
}

void Protocol::finish(State& state, int rank) const {
  Rank& worker = rank_in(state, rank);
  worker.done = worker.id;
  worker.skips = 0;
  worker.pc = await_command;
}

/// Inbox::await_command, OutgoingMemory::collect, and the first part of depends_on_a_failure.
void Protocol::begin_command(State& state, int rank) const {
  Rank& worker = rank_in(state, rank);
  const Entry entry = worker.inbox[static_cast<std::size_t>(worker.received % scenario_.places)];
  ++worker.received;
  worker.id = entry.id;
  worker.slot = entry.slot;
  const Byte consumed = is(Mistake::frees_outputs_at_done) ? worker.done : worker.consumed;
  worker.outputs = static_cast<Byte>(worker.outputs & ~(bit(consumed + 1) - 1));
  check_order(state, rank);
  if (is_close(entry.id)) {
    worker.life = Life::dead;
    worker.end = End::at_close;
    return;
  }
  worker.pc = run;
  for (Byte earlier = 1; earlier < entry.id; ++earlier) {
    if ((state.master.dependencies[entry.id] & bit(earlier)) == 0) continue;
    worker.pc = read_spoiled;
    const Slot& slot = node_in(state, node_of(rank)).slots[state.master.slot_of[earlier]];
    if (slot.failed == earlier) worker.skips = 1;
  }
}

void Protocol::check_order(State& state, int rank) const {
  const Rank& worker = rank_in(state, rank);
  Byte before = 0;
  for (Byte id = 1; id < worker.id; ++id) before = has_rank(id, rank) ? id : before;
  expect(state, worker.done == before, Property::runs_in_order);
}

void Protocol::check_that_it_may_run(State& state, int rank) const {
  const Node& node = node_in(state, node_of(rank));
  const Rank& worker = rank_in(state, rank);
  for (Byte earlier = 1; earlier < worker.id; ++earlier) {
    const bool depends = (state.master.dependencies[worker.id] & bit(earlier)) != 0;
    expect(state, !depends || (state.failed[earlier] & bit(rank)) == 0, Property::failed_dependency_is_not_run);
  }
  if (node_of(rank) == 0) return;
  const auto all = static_cast<Byte>(bit(worker.id + 1) - 2);
  expect(state, (node.changes & all) == all, Property::heap_is_as_the_masters);
  expect(state, has_rows_for(state, node_of(rank), worker.id), Property::rows_are_there);
}

/// If no function can fail, the step includes `done`: no other process reads before it what the worker writes.
void Protocol::run_command(const State& state, int rank, Step step, const Visit& visit) const {
  const Byte id = rank_in(state, rank).id;
  State next = state;
  rank_in(next, rank).pc = store_done;
  if (rank_in(state, rank).skips != 0) {
    write_outbox(next, rank, {id, Vote::failed, 0});
    return visit(next, step);
  }
  check_that_it_may_run(next, rank);
  State failed = next;
  next.ran[id] |= bit(rank);
  rank_in(next, rank).outputs |= bit(id);
  if (call(id).writes_outbox) write_outbox(next, rank, {id, Vote::ok, 0});
  if (scenario_.failures == 0) finish(next, rank);
  visit(next, step);
  if (state.failures == scenario_.failures || !call(id).writes_outbox) return;
  ++failed.failures;
  failed.failed[id] |= bit(rank);
  write_outbox(failed, rank, {id, Vote::failed, 1});
  visit(failed, step);
}

void Protocol::write_outbox(State& state, int rank, Outcome report) const {
  Rank& worker = rank_in(state, rank);
  worker.outboxes[place_of(report.command, rank)] = report;
  if (report.vote == Vote::failed) node_in(state, node_of(rank)).slots[worker.slot].failed = report.command;
}

}  // namespace model::nodes
