// A worker of the model: CommandLoop and Inbox (worker/loop/), and Meetings::leave.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

void Protocol::step_worker(const State& state, int rank, const Visit& visit) const {
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  if (worker.process.sub == Sub::asleep) return;
  if (scenario_.copies_ahead) start_ahead(state, rank, visit);
  if (worker.process.pc == body) return run_function(state, rank, visit);
  if (worker.process.pc == move_begin) return run_move(state, rank, visit);
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
  next.failed_late[worker.id] |= bit(rank);
  visit(next, step);
}

/// A function may do all that the scenario allows: call a collective, return, throw, or never return.
void Protocol::run_function(const State& state, int rank, const Visit& visit) const {
  const Step step{Step::Who::worker, static_cast<Byte>(rank), body, Sub::look};
  const auto index = static_cast<std::size_t>(rank);
  const Worker& worker = state.workers[index];
  State next = state;
  const bool has_more = worker.step < call(state, worker.id).operations;
  if (!has_more) end_function(next, rank);
  go(next.workers[index].process, has_more ? reclaim : deliver);
  visit(next, step);
  if (has_more && scenario_.may_return_early) {
    go(next.workers[index].process, deliver);
    visit(next, step);
  }
  try_to_drop(state, rank, visit);
  if (may_fail(state, worker.id)) {
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

bool Protocol::may_fail(const State& state, Byte id) const noexcept {
  const bool is_chosen = scenario_.failing_call == 0 || scenario_.failing_call == state.what[id];
  return is_chosen && state.failures < scenario_.failures;
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
  if (pc == look_for_lost) return look_for_lost_ranks(state, rank);
  if (pc == await_ranks) return await_earlier(state, rank);
  if (pc == move_end) return end_move(state, rank);
  if (pc == drop_copy) return drop(state, rank);
  if (pc == appoint_copy) return appoint(state, rank);
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
  const auto outcome =
      wait(state, worker.process, Bell::to_workers, published, [&] { return state.lost != 0 && !scenario_.respawns; });
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
  if (is_close(state, worker.id)) return end(worker);
  if (scenario_.respawns) return go(worker.process, look_for_lost);
  begin_waits(state, rank);
}

/// The first step of depends_on_a_failure, if the command has dependencies.
void Protocol::begin_dependencies(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const bool has_any = state.dependencies[worker.id] != 0 || state.waits[worker.id] != 0;
  if (!has_any || is(Mistake::ignores_dependencies)) return enter_body(state, rank);
  if (state.dependencies[worker.id] == 0) return go(worker.process, load_spoiled);
  const bool begins_with_spoiled = is(Mistake::spoiled_before_failed) || is(Mistake::ignores_failed);
  go(worker.process, begins_with_spoiled ? load_spoiled : load_failed);
}

/// Inbox::depends_on_a_failure. The slot of a dependency may contain another command by now.
void Protocol::check_dependencies(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte dependencies = state.dependencies[worker.id];
  if (process.pc == load_spoiled) {
    if (state.pool[worker.slot].spoiled == worker.id) return skip(state, rank);
    return is(Mistake::spoiled_before_failed) ? go(process, load_failed) : enter_body(state, rank);
  }
  Byte& earlier = process.scan;
  while ((dependencies & bit(earlier)) == 0) ++earlier;
  if (state.pool[state.slot_of[earlier]].failed == earlier) return skip(state, rank);
  do ++earlier;
  while (earlier < worker.id && (dependencies & bit(earlier)) == 0);
  if (earlier < worker.id) return;
  const bool is_last = is(Mistake::spoiled_before_failed) || is(Mistake::ignores_spoiled);
  return is_last ? enter_body(state, rank) : go(process, load_spoiled);
}

/// The rank does not run the command. The failure is not its own.
void Protocol::skip(State& state, int rank) const {
  state.workers[static_cast<std::size_t>(rank)].skips = 1;
  fail(state, rank, false);
}

/// Meetings::begin. A function may write from here on.
void Protocol::enter_body(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  if (is_move(state, worker.id)) {
    const bool has_begun = worker.ahead == worker.id;
    if (has_begun && is(Mistake::ahead_is_not_awaited)) return go(worker.process, write_vote);
    return go(worker.process, has_begun ? move_end : move_begin);
  }
  begin_writing(state, rank);
  expect(state, !call(state, worker.id).uses_shares || (state.shares & bit(rank)) != 0, Property::call_has_its_shares);
  if (call(state, worker.id).operations != 0) {
    worker.begun = worker.id;
    worker.step = 0;
  }
  go(worker.process, body);
}

// ---- a command ends -------------------------------------------------------------------------------------------

/// The end of run_call: the outputs, the vote, and what follows the vote.
void Protocol::vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = outbox_of(state, worker.slot, rank);
  switch (process.pc) {
    case deliver:
      if (is(Mistake::done_before_outputs) && !call(state, id).wants_vote) {
        worker.done = id;
        return go(process, write_vote);
      }
      if (is(Mistake::vote_before_outbox) && call(state, id).has_outputs) worker.vote = id;
      // A body may have swallowed the exception of a collective.
      if (call(state, id).operations != 0 && state.pool[worker.slot].failed == id) return fail(state, rank, false);
      return go(process, write_vote);
    case write_vote:
      outbox = {id, Vote::ok, Vote::ok, 0, 0};
      state.ran[id] |= bit(rank);
      return go(process, store_vote);
    case store_vote:
      if (!call(state, id).has_outputs && !call(state, id).wants_vote) return after_vote(state, rank);
      worker.vote = id;
      return go(process, ring_vote);
    case ring_vote:
      if (ring(state, process, Bell::to_peers)) after_vote(state, rank);
      return;
    default: break;
  }
  // reduce_and_commit
  if (call(state, id).is_large) {
    for (int other = 0; other < workers(); ++other) {
      if (!has_rank(state, id, other)) continue;
      expect(state, outbox_of(state, worker.slot, other).command == id, Property::outbox_is_of_this_command);
    }
  }
  if (call(state, id).wants_vote) state.committed[id] |= bit(rank);
  leave_or_finish(state, rank);
}

void Protocol::after_vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte id = worker.id;
  const bool is_for_it = outbox_of(state, worker.slot, rank).vote == Vote::ok;
  // A rank that skips the call returns from `execute` right after its vote.
  const bool waits = worker.skips == 0 && (call(state, id).wants_vote || (is_for_it && call(state, id).is_large));
  worker.skips = 0;
  if (!waits) return leave_or_finish(state, rank);
  if (!has_met(state, id) || is(Mistake::leaves_after_the_votes)) return go(worker.process, tally_votes);
  worker.skips = 2;
  go(worker.process, leave_steps);
}

/// Goes to report_failure. The failure is not the rank's own if the call was abandoned or skipped.
void Protocol::fail(State& state, int rank, bool is_own) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
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
    case write_failure: {
      Outbox& outbox = outbox_of(state, worker.slot, rank);
      const bool keeps_vote = worker.is_late != 0 && !is(Mistake::late_failure_changes_the_vote);
      outbox = {id, Vote::failed, keeps_vote ? outbox.cast : Vote::failed, worker.seen, 0};
      worker.seen = 0;
      return go(process, store_failed);
    }
    case store_failed: state.pool[worker.slot].failed = id; return go(process, ring_failed);
    default: break;
  }
  if (!ring(state, process, Bell::to_peers)) return;
  abandon_ahead(worker);
  if (skips_vote || worker.is_late != 0) {
    worker.skips = worker.is_late = 0;
    return leave_or_finish(state, rank);
  }
  go(process, store_vote);
}

void Protocol::leave_or_finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const bool has_left = worker.collective_command == worker.id && worker.collective_step == kLeft;
  go(worker.process, has_met(state, worker.id) && !has_left ? leave_steps : store_done);
}

/// Meetings::leave, and the end of CommandLoop::finish.
void Protocol::finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = outbox_of(state, worker.slot, rank);
  switch (process.pc) {
    case leave_steps: {
      const bool is_begun = is(Mistake::leave_compares_slots)
                                ? worker.begun != 0 && state.slot_of[worker.begun] == worker.slot
                                : worker.begun == id;
      outbox.steps = is_begun ? worker.step : 0;
      return go(process, outbox.steps == 0 ? leave_clear : leave_step);
    }
    case leave_clear: worker.collective_step = 0; return go(process, leave_command);
    case leave_command: worker.collective_command = id; return go(process, leave_step);
    case leave_step: worker.collective_step = kLeft; return go(process, ring_left);
    case ring_left:
      if (!ring(state, process, Bell::to_peers)) return;
      go(process, worker.skips == 2 ? tally_votes : store_done);
      worker.skips = 0;
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
    case ring_done: {
      if (!is(Mistake::rings_before_done) && !ring(state, process, Bell::to_master)) return;
      const bool wakes_readers = has_met(state, id) && !is(Mistake::done_wakes_no_readers);
      if (wakes_readers) return go(process, ring_readers);
      break;
    }
    default:  // ring_readers: a peer may wait until this rank no longer reads its buffers
      if (!ring(state, process, Bell::to_peers)) return;
  }
  worker.slot = 0;
  go(process, await_next);
}

}  // namespace model
