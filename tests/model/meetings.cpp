// How the workers of the model wait for each other: worker/comm/meetings.cpp.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

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
    return pc == meet_peers ? nobody_is_behind(state, worker, rank) : votes(state, worker);
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
    worker.readers = ranks_of(state, worker.id);
    return go(process, contribute);
  }
  if (pc == meet_peers) {
    return go(process, found != 0 ? look_for_absent_ranks : read_contributions);
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
  const Byte ranks = ranks_of(state, worker.id);
  Byte& other = worker.process.scan;
  while ((ranks & bit(other)) == 0) ++other;
  if (state.workers[other].vote < worker.id) return Answer::no;
  const Outbox& outbox = outbox_of(state, worker.slot, other);
  expect(state, outbox.command == worker.id, Property::outbox_is_of_this_command);
  if (outbox.cast != Vote::ok) worker.process.mask |= bit(other);
  return next_rank(worker.process, ranks);
}

/// Meetings::presence_of for the rank that the scan has come to, one load per step.
Protocol::Presence Protocol::presence_of_next(const State& state, Worker& worker) const {
  Process& process = worker.process;
  const Worker& other = state.workers[process.scan];
  const auto found = [&](Presence presence) {
    worker.known = worker.seen = 0;
    process.phase = 0;
    return presence;
  };
  switch (process.phase++) {
    case 0:
      worker.known = other.collective_command;
      return worker.known < worker.id ? found(Presence::behind) : Presence::looking;
    case 1: worker.seen = other.collective_step; return Presence::looking;
    default: break;
  }
  const bool is_here = worker.known == worker.id && worker.seen != kLeft && other.collective_command == worker.id;
  if (!is_here) return found(Presence::elsewhere);
  return found(worker.seen >= worker.step ? Presence::here : Presence::behind);
}

/// The condition in Meetings::step. The mask gets the ranks that are elsewhere.
Protocol::Answer Protocol::nobody_is_behind(const State& state, Worker& worker, int rank) const {
  Process& process = worker.process;
  const Byte others = without(ranks_of(state, worker.id), rank);
  if (others == 0) return Answer::yes;
  while ((others & bit(process.scan)) == 0) ++process.scan;
  switch (presence_of_next(state, worker)) {
    case Presence::looking: return Answer::looking;
    case Presence::behind: return Answer::no;
    case Presence::elsewhere: process.mask |= bit(process.scan); break;
    case Presence::here: break;
  }
  return next_rank(process, others);
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
    expect(state, is_of_this_operation || !has_rank(state, worker.id, other),
           Property::contribution_is_of_this_operation);
  }
  ++worker.step;
  go(process, body);
}

/// Meetings::check_that_all_are_here. A rank that has left the call without this step is to blame, unless the call is
/// given up. Unless functions may return early, all ranks call the same collectives, so every blame is wrong.
void Protocol::look_for_absent(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte others = without(ranks_of(state, worker.id), rank);
  while ((others & bit(process.scan)) == 0) ++process.scan;
  const int other = process.scan;
  const Presence presence = presence_of_next(state, worker);
  if (presence == Presence::looking) return;
  const bool may_have_left =
      presence == Presence::elsewhere || (presence == Presence::behind && !is(Mistake::behind_is_here));
  if (may_have_left) {
    const Outbox& outbox = outbox_of(state, worker.slot, other);
    expect(state, outbox.command == worker.id, Property::outbox_is_of_this_command);
    if (outbox.steps < worker.step) {
      const bool is_given_up = this->is_given_up(state, worker);
      const bool has_returned = scenario_.may_return_early && (state.ran[worker.id] & bit(other)) != 0;
      expect(state, is_given_up || has_returned, Property::nobody_is_blamed_for_leaving);
      return fail(state, rank, !is_given_up);  // if the session is lost, the next wait ends the worker
    }
  }
  if (next_rank(process, others) == Answer::yes) go(process, read_contributions);
}

}  // namespace model
