// The worker of the model: worker/serve/worker_core.cpp, worker/comm/meetings.cpp.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

void Protocol::step_worker(const State& state, int rank, const Visit& visit) const {
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  if (worker.process.sub == Sub::asleep) return;
  if (worker.process.pc == body) return run_function(state, rank, visit);
  const Step step{Step::Who::worker, static_cast<Byte>(rank), worker.process.pc, worker.process.sub};
  State next = state;
  take_step(next, rank);
  settle(next, rank);
  visit(next, step);
  if (worker.process.pc != reduce_and_commit || !scenario_.may_fail_late || state.failures == scenario_.failures)
    return;
  next = state;
  fail(next, rank, true);
  next.workers[static_cast<std::size_t>(rank)].is_late = 1;
  visit(next, step);
}

/// A function may do all that the scenario allows: call a collective, return, throw, or never return.
void Protocol::run_function(const State& state, int rank, const Visit& visit) const {
  const Step step{Step::Who::worker, static_cast<Byte>(rank), body, Sub::look};
  const auto index = static_cast<std::size_t>(rank);
  const Worker& worker = state.workers[index];
  State next = state;
  const bool has_more = worker.step < call(worker.id).operations;
  go(next.workers[index].process, has_more ? reclaim : deliver);
  visit(next, step);
  const bool may_fail = scenario_.failing_call == 0 || scenario_.failing_call == worker.id;
  if (may_fail && state.failures < scenario_.failures) {
    next = state;
    fail(next, rank, true);
    settle(next, rank);
    visit(next, step);
  }
  if (!scenario_.functions_may_hang) return;
  next = state;
  next.workers[index].life = Life::hung;
  visit(next, step);
}

/// True if the next step is taken together with the one before. Other processes cannot see such a step, or do not read
/// what it writes before a later step.
bool Protocol::is_unseen(const Worker& worker) const noexcept {
  switch (worker.process.pc) {
    case read_command:
    case leave_steps: return true;
    case write_vote: return !is(Mistake::done_before_outputs) && !is(Mistake::vote_before_outbox);
    case write_failure: return worker.is_late == 0;
    default: return false;
  }
}

void Protocol::settle(State& state, int rank) const {
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  while (worker.life == Life::alive && is_unseen(worker)) take_step(state, rank);
}

void Protocol::take_step(State& state, int rank) const {
  const Byte pc = state.workers[static_cast<std::size_t>(rank)].process.pc;
  if (pc == await_next) return await_command(state, rank);
  if (pc == read_command) return begin_command(state, rank);
  if (pc == load_failed || pc == load_spoiled) return check_dependencies(state, rank);
  if (pc == reclaim || pc == meet_peers || pc == tally_votes) return wait_for_peers(state, rank);
  if (pc >= contribute && pc <= read_contributions) return meet(state, rank);
  if (pc >= deliver && pc <= reduce_and_commit) return vote(state, rank);
  if (pc >= write_failure && pc <= ring_failed) return report_failure(state, rank);
  finish(state, rank);
}

// ---- a command begins -----------------------------------------------------------------------------------------

void Protocol::await_command(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Entry entry = worker.inbox[worker.received % static_cast<std::size_t>(scenario_.places)];
  const auto published = [&] { return entry.id > worker.id ? Answer::yes : Answer::no; };
  const auto outcome = wait(state, worker.process, Bell::to_workers, published, [&] { return state.lost != 0; });
  if (outcome == Outcome::interrupted) end(worker);
  if (outcome != Outcome::ready) return;
  worker.id = entry.id;
  worker.slot = entry.slot;
  ++worker.received;
  go(worker.process, read_command);
}

void Protocol::begin_command(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  expect(state, state.pool[worker.slot].id == worker.id, Property::slot_is_not_reused);
  if (worker.id == close_id()) return end(worker);
  if (state.dependencies[worker.id] == 0 || is(Mistake::ignores_dependencies)) return enter_body(state, rank);
  const bool begins_with_spoiled = is(Mistake::spoiled_before_failed) || is(Mistake::ignores_failed);
  go(worker.process, begins_with_spoiled ? load_spoiled : load_failed);
}

/// WorkerCore::depends_on_a_failure. The slot of a dependency may contain another command by now.
void Protocol::check_dependencies(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte dependencies = state.dependencies[worker.id];
  const auto skip = [&] {
    worker.skips = 1;
    fail(state, rank, false);
  };
  if (process.pc == load_spoiled) {
    if (state.pool[worker.slot].spoiled == worker.id) return skip();
    return is(Mistake::spoiled_before_failed) ? go(process, load_failed) : enter_body(state, rank);
  }
  Byte& earlier = process.scan;
  while ((dependencies & bit(earlier)) == 0) ++earlier;
  if (state.pool[state.slot_of[earlier]].failed == earlier) return skip();
  do ++earlier;
  while (earlier < worker.id && (dependencies & bit(earlier)) == 0);
  if (earlier < worker.id) return;
  const bool is_last = is(Mistake::spoiled_before_failed) || is(Mistake::ignores_spoiled);
  return is_last ? enter_body(state, rank) : go(process, load_spoiled);
}

/// Meetings::begin.
void Protocol::enter_body(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  if (call(worker.id).operations != 0) {
    worker.begun_slot = static_cast<Byte>(worker.slot + 1);
    worker.step = 0;
  }
  go(worker.process, body);
}

// ---- waits for peers ----------------------------------------------------------------------------------------------

bool Protocol::is_given_up(const State& state, const Worker& worker) const noexcept {
  return state.pool[worker.slot].failed == worker.id || state.lost != 0;
}

/// Meetings::await, and the wait in all_voted_ok.
void Protocol::wait_for_peers(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte pc = process.pc;
  if (pc == reclaim && (worker.last == worker.id || is(Mistake::no_reclaim))) return go(process, contribute);
  const auto ready = [&] {
    if (pc == reclaim) return peers_are_done(state, worker, rank);
    return pc == meet_peers ? presence(state, worker, rank) : votes(state, worker);
  };
  // A rank that has failed still takes part in the vote. Only a loss ends the wait for votes early.
  const auto interrupted = [&] { return pc == tally_votes ? state.lost != 0 : is_given_up(state, worker); };
  const Outcome outcome = wait(state, process, Bell::to_peers, ready, interrupted);
  if (outcome == Outcome::goes_on) return;
  if (outcome == Outcome::interrupted) {
    if (state.lost != 0) return end(worker);  // SessionLost
    return fail(state, rank, false);          // Abandoned
  }
  const Byte found = process.mask;
  if (pc == reclaim) {
    worker.last = worker.id;
    worker.readers = ranks_of(worker.id);
    return go(process, contribute);
  }
  if (pc == meet_peers) {
    go(process, found != 0 ? look_for_absent_ranks : read_contributions);
    process.mask = found;
    return;
  }
  const bool all_are_for_it = found == 0 || is(Mistake::commits_without_vote);
  if (all_are_for_it) return go(process, reduce_and_commit);
  leave_or_finish(state, rank);
}

/// A condition over several ranks checks one rank per step. `yes`: it holds for all of them. `no`: it does not hold for
/// this rank. This function goes on to the next rank of the set.
Protocol::Answer Protocol::next_rank(Process& process, Byte ranks) const noexcept {
  do ++process.scan;
  while (process.scan < workers() && (ranks & bit(process.scan)) == 0);
  return process.scan < workers() ? Answer::looking : Answer::yes;
}

Protocol::Answer Protocol::peers_are_done(const State& state, Worker& worker, int rank) const {
  const Byte others = without(worker.readers, rank);
  if (others == 0) return Answer::yes;
  Byte& other = worker.process.scan;
  while ((others & bit(other)) == 0) ++other;
  return state.workers[other].done < worker.last ? Answer::no : next_rank(worker.process, others);
}

/// The mask gets the ranks that have not voted ok.
Protocol::Answer Protocol::votes(State& state, Worker& worker) const {
  const Byte ranks = ranks_of(worker.id);
  Byte& other = worker.process.scan;
  while ((ranks & bit(other)) == 0) ++other;
  if (state.workers[other].vote < worker.id) return Answer::no;
  const Outbox& outbox = outbox_of(state, worker.slot, other);
  expect(state, outbox.command == worker.id, Property::outbox_is_of_this_command);
  if (outbox.vote != Vote::ok) worker.process.mask |= bit(other);
  return next_rank(worker.process, ranks);
}

/// Meetings::presence_of, one load per step. The mask gets the ranks that are elsewhere.
Protocol::Answer Protocol::presence(const State& state, Worker& worker, int rank) const {
  Process& process = worker.process;
  const Byte others = without(ranks_of(worker.id), rank);
  if (others == 0) return Answer::yes;
  while ((others & bit(process.scan)) == 0) ++process.scan;
  const Worker& other = state.workers[process.scan];
  const auto go_to_next = [&] {
    worker.known = worker.seen = 0;
    process.phase = 0;
    return next_rank(process, others);
  };
  const auto is_behind = [&] {
    worker.known = worker.seen = 0;
    return Answer::no;
  };
  switch (process.phase++) {
    case 0: worker.known = other.collective_command; return worker.known < worker.id ? is_behind() : Answer::looking;
    case 1: worker.seen = other.collective_step; return Answer::looking;
    default: break;
  }
  const bool is_here = worker.known == worker.id && worker.seen != kLeft && other.collective_command == worker.id;
  if (!is_here) {
    process.mask |= bit(process.scan);
    return go_to_next();
  }
  return worker.seen >= worker.step ? go_to_next() : is_behind();
}

/// Meetings::meet, from writing the rank's contribution to reading those of its peers.
void Protocol::meet(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const std::size_t parity = is(Mistake::one_contribution) ? 0 : worker.step % 2U;
  switch (process.pc) {
    case contribute:
      worker.contributions[parity] = contribution_of(worker);
      if (worker.step != 0) return go(process, enter_step);
      return go(process, is(Mistake::command_before_step_is_cleared) ? enter_command : clear_step);
    case clear_step:
      worker.collective_step = 0;
      return go(process, is(Mistake::command_before_step_is_cleared) ? enter_step : enter_command);
    case enter_command:
      worker.collective_command = worker.id;
      return go(process, is(Mistake::command_before_step_is_cleared) ? clear_step : enter_step);
    case enter_step: worker.collective_step = ++worker.step; return go(process, ring_step);
    case ring_step:
      if (ring(state, process, Bell::to_peers)) go(process, meet_peers);
      return;
    case look_for_absent_ranks: return look_for_absent(state, rank);
    default: break;
  }
  --worker.step;  // back to the operation whose contributions are read here
  const std::size_t read = is(Mistake::one_contribution) ? 0 : worker.step % 2U;
  for (int other = 0; other < workers(); ++other) {
    const bool is_of_this_operation =
        state.workers[static_cast<std::size_t>(other)].contributions[read] == contribution_of(worker);
    expect(state, is_of_this_operation || !has_rank(worker.id, other), Property::contribution_is_of_this_operation);
  }
  ++worker.step;
  go(process, body);
}

/// A rank that has left the call without this step is to blame, unless the call is given up. In the model, all ranks
/// call the same collectives, so every blame is wrong.
void Protocol::look_for_absent(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte id = worker.id;
  for (int other = 0; other < workers(); ++other) {
    if ((worker.process.mask & bit(other)) == 0) continue;
    const Outbox& outbox = outbox_of(state, worker.slot, other);
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.steps >= worker.step) continue;
    expect(state, is_given_up(state, worker), Property::nobody_is_blamed_for_leaving);
    return fail(state, rank, false);  // Abandoned, even if the session is lost: the next wait ends the worker then
  }
  go(worker.process, read_contributions);
}

/// The end of run_call: the outputs, the vote, and what follows the vote.
void Protocol::vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = outbox_of(state, worker.slot, rank);
  switch (process.pc) {
    case deliver:
      if (is(Mistake::done_before_outputs) && !call(id).wants_vote) {
        worker.done = id;
        return go(process, write_vote);
      }
      if (is(Mistake::vote_before_outbox) && call(id).has_outputs) worker.vote = id;
      // A body may have swallowed the exception of a collective.
      if (call(id).operations != 0 && state.pool[worker.slot].failed == id) return fail(state, rank, false);
      return go(process, write_vote);
    case write_vote:
      outbox = {id, Vote::ok, 0, 0};
      state.ran[id] |= bit(rank);
      return go(process, store_vote);
    case store_vote:
      if (!call(id).has_outputs && !call(id).wants_vote) return after_vote(state, rank);
      worker.vote = id;
      return go(process, ring_vote);
    case ring_vote:
      if (ring(state, process, Bell::to_peers)) after_vote(state, rank);
      return;
    default: break;
  }
  // reduce_and_commit
  if (call(id).is_large) {
    for (int other = 0; other < workers(); ++other) {
      if (!has_rank(id, other)) continue;
      expect(state, outbox_of(state, worker.slot, other).command == id, Property::outbox_is_of_this_command);
    }
  }
  if (call(id).wants_vote) state.committed[id] |= bit(rank);
  leave_or_finish(state, rank);
}

void Protocol::after_vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte id = worker.id;
  const bool is_for_it = outbox_of(state, worker.slot, rank).vote == Vote::ok;
  // A rank that skips the call returns from `execute` right after its vote.
  const bool waits = worker.skips == 0 && (call(id).wants_vote || (is_for_it && call(id).is_large));
  worker.skips = 0;
  if (waits) return go(worker.process, tally_votes);
  leave_or_finish(state, rank);
}

/// Goes to report_failure. The failure is not the rank's own if the call was abandoned or skipped.
void Protocol::fail(State& state, int rank, bool is_own) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  worker.is_own = is_own ? 1 : 0;
  worker.known = worker.seen = 0;
  if (is_own) {
    ++state.failures;
    state.failed[worker.id] |= bit(rank);
    if (state.first_failed_at[worker.id] == 0) state.first_failed_at[worker.id] = state.failures;
    worker.seen = state.failures;  // failed_ns
  }
  go(worker.process, write_failure);
}

void Protocol::report_failure(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  const bool skips_vote = is(Mistake::no_vote_after_skipping) && worker.skips != 0;
  switch (process.pc) {
    case write_failure:
      outbox_of(state, worker.slot, rank) = {id, Vote::failed, worker.seen, 0};
      worker.seen = 0;
      return go(process, store_failed);
    case store_failed:
      state.pool[worker.slot].failed = id;
      worker.is_own = 0;
      return go(process, ring_failed);
    default: break;
  }
  if (!ring(state, process, Bell::to_peers)) return;
  if (skips_vote || worker.is_late != 0) {
    worker.skips = worker.is_late = 0;
    return leave_or_finish(state, rank);
  }
  go(process, store_vote);
}

void Protocol::leave_or_finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const bool leaves = call(worker.id).operations != 0 && has_peers(worker.id);
  go(worker.process, leaves ? leave_steps : store_done);
}

/// Meetings::leave, and the end of WorkerCore::finish.
void Protocol::finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = outbox_of(state, worker.slot, rank);
  switch (process.pc) {
    case leave_steps:
      // Meetings::leave recognises a command by the address of its slot. If the rank did not run this command and its
      // last collectives were in an older command in the same slot, it records the steps of the older command.
      outbox.steps = worker.begun_slot == worker.slot + 1 ? worker.step : 0;
      return go(process, outbox.steps == 0 ? leave_clear : leave_step);
    case leave_clear: worker.collective_step = 0; return go(process, leave_command);
    case leave_command: worker.collective_command = id; return go(process, leave_step);
    case leave_step: worker.collective_step = kLeft; return go(process, ring_left);
    case ring_left:
      if (ring(state, process, Bell::to_peers)) go(process, store_done);
      return;
    case store_done:
      if (is(Mistake::rings_before_done) && process.phase == 0) {
        if (!ring(state, process, Bell::to_master)) return;
        process.phase = 1;
        return;
      }
      worker.done = id;
      go(process, ring_done);
      if (is(Mistake::rings_before_done)) process.sub = Sub::look;
      return;
    default: break;
  }
  if (!is(Mistake::rings_before_done) && !ring(state, process, Bell::to_master)) return;
  worker.slot = 0;
  go(process, await_next);
}

}  // namespace model
