// The copies of values on the workers of the model: worker/call/shared_variables.cpp, and Inbox::await_earlier.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

namespace {

constexpr Byte kIsForgotten = 128;  // a bit of Worker::ahead, in a mistake: the worker forgot a copy that still runs

/// The device may have to wait here, and then the worker looks ahead.
constexpr bool waits_for_device(Byte pc) noexcept { return pc == body || pc == deliver || pc == reduce_and_commit; }

}  // namespace

// ---- waiting for other ranks --------------------------------------------------------------------------------------

/// Inbox::has_lost_a_rank, for commands of one rank. A rank that reads this is not lost itself.
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
  const auto done = [&] {
    const bool is_taken_for_done = is(Mistake::ahead_counts_as_done) && state.workers[other].ahead == worker.known;
    return state.workers[other].done >= worker.known || is_taken_for_done ? Answer::yes : Answer::no;
  };
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

/// The move whose copy this worker makes now: that of its own command, or one that it has started ahead. 0 if there is
/// none.
Byte Protocol::copied_by(const Worker& worker) noexcept {
  if (worker.life != Life::alive) return 0;
  return worker.process.pc == move_end ? worker.id : static_cast<Byte>(worker.ahead & ~kIsForgotten);
}

bool Protocol::is_read_by_a_move(const State& state, Byte value, int rank) const noexcept {
  for (int other = 0; other < workers(); ++other) {
    const Byte id = copied_by(state.workers[static_cast<std::size_t>(other)]);
    if (id == 0) continue;
    const Move move = move_of(state, id);
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

/// True if these contents are what the last writer before the command has written. A writer that did not run, or must
/// fail, has written nothing. A writer that has failed leaves what it has written so far, except that a value which it should make does
/// not exist.
bool Protocol::is_as_written(const State& state, Byte id, Byte value, Byte contents) const noexcept {
  for (auto writer = static_cast<Byte>(id - 1); writer != 0; --writer) {
    const Call& call = this->call(state, writer);
    const bool makes = (call.makes & bit(value)) != 0;
    if (!makes && (call.writes & bit(value)) == 0) continue;
    if (state.ran[writer] != 0) return contents == writer;
    if (state.failed[writer] != 0) return !makes && contents == (writer | kIsPartial);
    const bool is_over = state.workers[rank_of(state, writer)].done >= writer;
    if (makes || (!is_over && state.inherited[writer] == 0)) return false;
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
  begin_copy(next, rank, id);
  go(next.workers[index].process, move_end);
  visit(next, step);
  try_to_drop(state, rank, visit);
  if (!scenario_.moves_may_fail || state.failures == scenario_.failures) return;
  next = state;
  next.values[move.value].contents[index] = kNoValues;
  fail(next, rank, true);
  settle(next, rank);
  visit(next, step);
}

/// From here on, the move reads the source and writes to the copy of this rank.
void Protocol::begin_copy(State& state, int rank, Byte id) const {
  const Move move = move_of(state, id);
  Value& value = state.values[move.value];
  const Byte source = move.from == kHost ? value.host.contents : value.contents[move.from];
  expect(state, is_as_written(state, id, move.value, source), Property::copy_is_as_written);
  expect(state, !is_read_by_a_move(state, move.value, rank), Property::copy_is_not_overwritten);
  value.contents[static_cast<std::size_t>(rank)] = kNoValues;
}

/// The copy is complete, also if it was started ahead: no process can see when it ends before the move has its turn.
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
  if (worker.ahead == worker.id) worker.ahead = 0;
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

// ---- copies that start ahead: LookAhead::copy_inputs, start_move_ahead --------------------------------------------

/// While a call runs, the copy of the next command may start, if that is a move from another rank. The code reads one
/// word after another. All of this takes one step here, because a command that is done stays done, and does not fail any
/// more. The code also requires that the copy of this rank has memory already.
void Protocol::start_ahead(const State& state, int rank, const Visit& visit) const {
  const auto index = static_cast<std::size_t>(rank);
  const Worker& worker = state.workers[index];
  if (!waits_for_device(worker.process.pc) || worker.ahead != 0) return;
  const Entry entry = worker.inbox[worker.received % static_cast<std::size_t>(scenario_.places)];
  if (entry.id <= worker.id || !is_move(state, entry.id) || !may_start_ahead(state, rank, entry)) return;
  State next = state;
  expect(next, state.pool[entry.slot].id == entry.id, Property::slot_is_not_reused);
  begin_copy(next, rank, entry.id);
  next.workers[index].ahead = entry.id;
  visit(next, {Step::Who::worker, static_cast<Byte>(rank), copy_ahead, Sub::look});
}

bool Protocol::may_start_ahead(const State& state, int rank, Entry entry) const noexcept {
  const Byte id = entry.id;
  const Move move = move_of(state, id);
  if (move.from == kHost || move.to == kHost) return false;
  const Byte dependencies = state.dependencies[id];
  Byte waits = state.waits[id];
  if (is(Mistake::ahead_ignores_readers)) waits &= dependencies;
  if (is(Mistake::ahead_ignores_earlier_commands)) waits = 0;
  bool may_start = is(Mistake::ahead_ignores_failures) || state.pool[entry.slot].spoiled != id;
  for (Byte earlier = 1; earlier < id; ++earlier) {
    const bool is_awaited = (waits & bit(earlier)) != 0;
    if (is_awaited && state.workers[rank_of(state, earlier)].done < earlier) may_start = false;
    const bool matters = (dependencies & bit(earlier)) != 0 && !is(Mistake::ahead_ignores_failures);
    if (matters && state.pool[state.slot_of[earlier]].failed == earlier) may_start = false;
  }
  if (scenario_.respawns && (state.is_lost & bit(move.from)) != 0) return false;
  const Call& running = call(state, state.workers[static_cast<std::size_t>(rank)].id);
  const bool is_argument = ((running.reads | running.writes) & bit(move.value)) != 0;
  return may_start && (!is_argument || is(Mistake::ahead_overwrites_arguments));
}

/// WorkerDevice::abandon: the command that runs has failed. The device waits until the copy is complete, and forgets it.
void Protocol::abandon_ahead(Worker& worker) const noexcept {
  if (worker.ahead == 0) return;
  worker.ahead = is(Mistake::failure_forgets_ahead) ? static_cast<Byte>(worker.ahead | kIsForgotten) : Byte{0};
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
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  expect(state, !is_read_by_a_move(state, index, rank), Property::copy_is_not_overwritten);
  const Byte copied = copied_by(worker);
  expect(state, copied == 0 || move_of(state, copied).value != index, Property::filled_copy_is_not_freed);
  if ((value.valid & bit(rank)) == 0) return;
  expect(state, scenario_.pinned != rank, Property::pinned_copy_is_not_dropped);
  const Byte writer = value.written[static_cast<std::size_t>(rank)];
  const bool is_to_come = is_in_flight(state, writer) && is_move(state, writer) && worker.done < writer;
  if (is_to_come) return;  // the copy has no values yet
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
