// The copies of values on the workers of the model: worker/call/shared_variables.cpp, and WorkerCore::await_earlier.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

// ---- waiting for other ranks --------------------------------------------------------------------------------------

/// WorkerCore::has_lost_a_rank, for commands of one rank. A rank that reads this is not lost itself.
void Protocol::look_for_lost_ranks(State& state, int rank) const {
  const Byte id = state.workers[static_cast<std::size_t>(rank)].id;
  const bool has_lost_source = is_move(state, id) && (state.is_lost & bit(move_of(state, id).from)) != 0;
  if (state.lost != 0 && has_lost_source) return skip(state, rank);
  begin_waits(state, rank);
}

/// The worker remembers in `known` which earlier command it waits for.
void Protocol::begin_waits(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte waits = state.waits[worker.id];
  do ++worker.known;
  while (worker.known < worker.id && (waits & bit(worker.known)) == 0);
  if (worker.known < worker.id) return go(worker.process, await_ranks);
  worker.known = 0;
  begin_dependencies(state, rank);
}

/// The wait for one earlier command. The commands of other ranks for which a command waits have one rank each.
void Protocol::await_earlier(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte other = rank_of(state, worker.known);
  const auto done = [&] { return state.workers[other].done >= worker.known ? Answer::yes : Answer::no; };
  const auto lost = [&] {
    if (is(Mistake::waits_for_lost_ranks)) return false;
    return state.lost != 0 && (!scenario_.respawns || (state.is_lost & bit(other)) != 0);
  };
  const Outcome outcome = wait(state, worker.process, Bell::to_master, done, lost);
  if (outcome == Outcome::goes_on) return;
  if (outcome == Outcome::ready) return begin_waits(state, rank);
  worker.known = 0;
  if (!scenario_.respawns) return end(worker);  // SessionLost
  skip(state, rank);                            // give_up_for_loss
}

// ---- the memory of copies -----------------------------------------------------------------------------------------

bool Protocol::is_read_by_a_move(const State& state, Byte value, int rank) const noexcept {
  for (int other = 0; other < workers(); ++other) {
    const Worker& worker = state.workers[static_cast<std::size_t>(other)];
    if (worker.life != Life::alive || worker.process.pc != move_end) continue;
    const Move move = move_of(state, worker.id);
    if (move.value == value && move.from == rank) return true;
  }
  return false;
}

bool Protocol::is_host_copy_in_use(const State& state, Byte value) const noexcept {
  for (int rank = 0; rank < workers(); ++rank) {
    const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
    if (worker.life != Life::alive || worker.process.pc != move_end) continue;
    const Move move = move_of(state, worker.id);
    if (move.value == value && (move.from == kHost || move.to == kHost)) return true;
  }
  return false;
}

/// True if these contents are what the last writer before the command has written. A writer that did not run has written
/// nothing. A writer that has failed leaves what it has written so far, except that a value which it should make does
/// not exist.
bool Protocol::is_as_written(const State& state, Byte id, Byte value, Byte contents) const noexcept {
  for (auto writer = static_cast<Byte>(id - 1); writer != 0; --writer) {
    const Call& call = this->call(state, writer);
    const bool makes = (call.makes & bit(value)) != 0;
    if (!makes && (call.writes & bit(value)) == 0) continue;
    if (state.ran[writer] != 0) return contents == writer;
    if (state.failed[writer] != 0) return !makes && contents == (writer | kIsPartial);
    const bool is_over = state.workers[rank_of(state, writer)].done >= writer;
    if (makes || !is_over) return false;
  }
  return contents == kFirstValues;
}

/// The function writes to its copies at any time from now on.
void Protocol::begin_writing(State& state, int rank) const {
  const Byte id = state.workers[static_cast<std::size_t>(rank)].id;
  for (Byte index = 0; index < kMostValues; ++index) {
    if ((call(state, id).writes & bit(index)) == 0) continue;
    Byte& contents = state.values[index].contents[static_cast<std::size_t>(rank)];
    expect(state, is_as_written(state, id, index, contents), Property::copy_is_as_written);
    expect(state, !is_read_by_a_move(state, index, rank), Property::copy_is_not_overwritten);
    contents = id | kIsPartial;
  }
}

/// The function has read its copies until now. What it returns becomes a copy (VariableCopies::adopt).
void Protocol::end_function(State& state, int rank) const {
  const Byte id = state.workers[static_cast<std::size_t>(rank)].id;
  const Call& call = this->call(state, id);
  for (Byte index = 0; index < kMostValues; ++index) {
    Byte& contents = state.values[index].contents[static_cast<std::size_t>(rank)];
    const Byte value = bit(index);
    if ((call.reads & value) != 0)
      expect(state, is_as_written(state, id, index, contents), Property::copy_is_as_written);
    if ((call.writes & value) != 0) expect(state, contents == (id | kIsPartial), Property::copy_is_as_written);
    if (((call.writes | call.makes) & value) != 0) contents = id;
  }
}

// ---- VariableCopies::run_move -------------------------------------------------------------------------------------

/// The first step of a move. Its copy gets new memory, which may fail.
void Protocol::run_move(const State& state, int rank, const Visit& visit) const {
  const auto index = static_cast<std::size_t>(rank);
  const Byte id = state.workers[index].id;
  const Move move = move_of(state, id);
  const Step step{Step::Who::worker, static_cast<Byte>(rank), move_begin, Sub::look};
  State next = state;
  if (move.to == kHost) {
    run_transfer(next, rank);
    return visit(next, step);
  }
  auto& contents = next.values[move.value].contents;
  const Byte source = move.from == kHost ? next.values[move.value].host.contents : contents[move.from];
  expect(next, is_as_written(next, id, move.value, source), Property::copy_is_as_written);
  expect(next, !is_read_by_a_move(state, move.value, rank), Property::copy_is_not_overwritten);
  contents[index] = kNoValues;
  go(next.workers[index].process, move_end);
  visit(next, step);
  try_to_drop(state, rank, visit);
  if (!scenario_.moves_may_fail || state.failures == scenario_.failures) return;
  next = state;
  contents[index] = kNoValues;
  fail(next, rank, true);
  settle(next, rank);
  visit(next, step);
}

void Protocol::end_move(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Move move = move_of(state, worker.id);
  auto& contents = state.values[move.value].contents;
  HostCopy& host = state.values[move.value].host;
  const Byte source = move.from == kHost ? host.contents : contents[move.from];
  expect(state, is_as_written(state, worker.id, move.value, source), Property::copy_is_as_written);
  if (move.to == kHost) {
    expect(state, host.last == worker.id, Property::host_copy_is_not_overwritten);
    host.contents = source;
  } else {
    contents[move.to] = source;
  }
  go(worker.process, write_vote);
}

/// The first step of a transfer to the host.
void Protocol::run_transfer(State& state, int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  const Byte id = state.workers[index].id;
  const Byte of = move_of(state, id).value;
  Value& value = state.values[of];
  expect(state, is_as_written(state, id, of, value.contents[index]), Property::copy_is_as_written);
  const bool is_newer = value.host.last < id && !is_host_copy_in_use(state, of);
  expect(state, is_newer, Property::host_copy_is_not_overwritten);
  value.host.contents = kNoValues;
  value.host.last = id;
  go(state.workers[index].process, move_end);
}

// ---- VariableCopies::drop_spare -----------------------------------------------------------------------------------

/// SpareCopy::drop: the load. If the copy is not spare, nothing happens. A step that changes nothing is left out.
void Protocol::try_to_drop(const State& state, int rank, const Visit& visit) const {
  if (state.drops == scenario_.drops) return;
  const auto index = static_cast<std::size_t>(rank);
  const Worker& worker = state.workers[index];
  const Byte in_use = is(Mistake::drops_what_is_in_use) ? 1 : 0;
  for (Byte value = 0; value < kMostValues; ++value) {
    const Byte spare = state.values[value].spare[index];
    if (!is_spare(spare) || spare_from(spare) > worker.id + in_use) continue;
    const bool is_home = (spare & kIsHome) != 0 && !is(Mistake::home_needs_no_successor);
    State next = state;
    ++next.drops;
    next.workers[index].known = spare;
    next.workers[index].seen = value;
    go(next.workers[index].process, is_home ? appoint_copy : drop_copy);
    if (is_home && rank == 0) next.workers[index].process.scan = 1;
    visit(next, {Step::Who::worker, static_cast<Byte>(rank), worker.process.pc, Sub::look});
  }
}

/// drop_copy: the home looks for a copy that can take its place. It looks at one rank per step.
void Protocol::appoint(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Byte& other = worker.process.scan;
  Byte& spare = state.values[worker.seen].spare[other];
  if (is_spare(spare) && (spare & kIsSuccessor) != 0) {
    if (!is(Mistake::successor_is_not_claimed)) spare = kNeeded;
    return go(worker.process, drop_copy);
  }
  do ++other;
  while (other == rank);
  if (other >= workers()) end_drop(state, rank);
}

/// SpareCopy::drop: the exchange. The memory of the copy is then free.
void Protocol::drop(State& state, int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  Worker& worker = state.workers[index];
  Value& value = state.values[worker.seen];
  if (value.spare[index] == worker.known || is(Mistake::drop_ignores_the_claim)) {
    check_drop(state, worker.seen, rank);
    value.spare[index] = kDropped;
    value.contents[index] = kNoValues;
  }
  end_drop(state, rank);
}

void Protocol::check_drop(State& state, Byte index, int rank) const {
  const Value& value = state.values[index];
  expect(state, !is_read_by_a_move(state, index, rank), Property::copy_is_not_overwritten);
  if ((value.valid & bit(rank)) == 0) return;
  expect(state, scenario_.pinned != rank, Property::pinned_copy_is_not_dropped);
  const Byte contents = value.contents[static_cast<std::size_t>(rank)];
  bool is_elsewhere = value.host.is_valid != 0 && value.host.contents == contents;
  for (int other = 0; other < workers(); ++other) {
    is_elsewhere = is_elsewhere || (other != rank && value.contents[static_cast<std::size_t>(other)] == contents);
  }
  expect(state, is_elsewhere, Property::last_copy_is_not_dropped);
}

void Protocol::end_drop(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  worker.known = worker.seen = 0;
  go(worker.process, is_move(state, worker.id) ? move_begin : body);
}

}  // namespace model
