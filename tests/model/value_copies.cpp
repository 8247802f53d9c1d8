// What the master of the model knows of values: launcher/values/call_values.cpp, launcher/values/value_copies.cpp.

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

namespace {

constexpr Byte kCopies = kMostValues * kMostWorkers;

constexpr Byte value_in(Byte copy) noexcept { return copy / kMostWorkers; }
constexpr Byte rank_in(Byte copy) noexcept { return copy % kMostWorkers; }

}  // namespace

/// The first copy from this one on for which the condition holds. kCopies if there is none.
template <class Matches>
Byte Protocol::find_copy(Byte from, Matches matches) const {
  while (from < kCopies && !matches(from)) ++from;
  return from;
}

/// True if the call uses a copy that another command has written, on one of its ranks.
bool Protocol::uses_copy(const Call& call, Byte copy) const noexcept {
  return ((call.reads | call.writes) & bit(value_in(copy))) != 0 && (ranks_of(call) & bit(rank_in(copy))) != 0;
}

// ---- before a call is published -----------------------------------------------------------------------------------

/// CallValues::check. A call that uses a value which was not made, or was lost, is not published.
void Protocol::begin_call_with_values(State& state) const {
  const Call& call = next_call(state);
  for (Byte value = 0; value < kMostValues; ++value) {
    const bool uses = ((call.reads | call.writes) & bit(value)) != 0;
    if (uses && state.values[value].has_failed != 0) return refuse_call(state);
  }
  state.is_writing = 1;
  state.cursor = find_copy(0, [&](Byte copy) { return uses_copy(call, copy); });
  if (state.cursor == kCopies) {
    state.cursor = 0;
    return publish_next(state, static_cast<Byte>(state.calls + 1));
  }
  claim_copy(state);
}

void Protocol::refuse_call(State& state) const {
  ++state.calls;
  state.is_writing = state.aside = state.cursor = 0;
  go(state.master, decide);
}

/// CallValues::needs_copies, one copy per step.
void Protocol::claim_copy(State& state) const {
  const Call& call = next_call(state);
  Value& value = state.values[value_in(state.cursor)];
  const Byte rank = rank_in(state.cursor);
  const bool is_here = value.spare[rank] != kDropped || is(Mistake::claim_ignores_the_drop);
  if (!is_here) value.valid = without(value.valid, rank);
  value.spare[rank] = kNeeded;
  state.cursor = find_copy(static_cast<Byte>(state.cursor + 1), [&](Byte copy) { return uses_copy(call, copy); });
  if (state.cursor < kCopies) return go(state.master, claim_copies);
  state.cursor = 0;
  if (find_missing(state, 0) == kCopies) return go(state.master, begin_call);
  state.aside = static_cast<Byte>(take_slot(state) + 1);
  bring_copies(state);
}

/// The next copy that the call uses and that is not valid.
Byte Protocol::find_missing(const State& state, Byte from) const {
  const Call& call = next_call(state);
  return find_copy(from, [&](Byte copy) {
    return uses_copy(call, copy) && (state.values[value_in(copy)].valid & bit(rank_in(copy))) == 0;
  });
}

/// CallValues::bring. A wait in it may collect a failure, or deal with a loss. So the master must look at all copies
/// again after each wait.
void Protocol::bring_copies(State& state) const {
  const Call& call = next_call(state);
  const bool looks_again = !is(Mistake::brings_without_another_look);
  for (Byte value = 0; looks_again && value < kMostValues; ++value) {
    const bool uses = ((call.reads | call.writes) & bit(value)) != 0;
    if (uses && state.values[value].has_failed != 0) return refuse_call(state);
  }
  const Byte copy = find_missing(state, looks_again ? 0 : state.cursor);
  state.cursor = copy;
  const Byte ranks = copy == kCopies ? ranks_of(call) : bit(rank_in(copy));
  if (const Byte first = blocker(state, ranks); first != 0) {
    state.awaited = first_to_collect(state, first);
    return go(state.master, await_call);
  }
  go(state.master, copy == kCopies ? begin_call : begin_move);
}

// ---- dependencies -------------------------------------------------------------------------------------------------

/// The next command depends on the command that writes a copy. If the writer must fail, and the program knows, then the
/// copy keeps what it had, and the command only has to come after the writer.
void Protocol::depend_on_writer(State& state, Byte writer) const {
  if (!is_in_flight(state, writer)) return;
  const bool is_doomed = state.inherited[writer] != 0 && !is(Mistake::depends_on_doomed_writes);
  if (!is_doomed) state.dependencies[state.next] |= bit(writer);
}

/// bring_from_rank.
void Protocol::find_dependencies_of_move(State& state) const {
  const Byte id = state.next;
  const Move move = move_of(state, id);
  const Value& value = state.values[move.value];
  const Byte writer = value.written[move.from];
  if (!is(Mistake::move_survives_the_writer)) depend_on_writer(state, writer);
  if (is_in_flight(state, writer) && !is(Mistake::move_ignores_the_writer)) state.waits[id] |= bit(writer);
  if (!is(Mistake::move_ignores_readers)) state.waits[id] |= value.readers[move.to];
}

/// depend_on_copy, for each copy that the call uses.
void Protocol::find_dependencies_on_values(State& state) const {
  const Byte id = state.next;
  const Call& call = this->call(state, id);
  for (Byte copy = 0; copy < kCopies; ++copy) {
    if (!uses_copy(call, copy)) continue;
    const Value& value = state.values[value_in(copy)];
    depend_on_writer(state, value.written[rank_in(copy)]);
    const bool writes = (call.writes & bit(value_in(copy))) != 0 && !is(Mistake::write_ignores_readers);
    if (writes) state.waits[id] |= value.readers[rank_in(copy)];
  }
}

// ---- after a command was published --------------------------------------------------------------------------------

/// The end of bring_from_rank and of bring_copy.
void Protocol::note_move(State& state, Byte id) const {
  const Move move = move_of(state, id);
  Value& value = state.values[move.value];
  value.readers[move.from] |= bit(id);
  value.written[move.to] = value.used[move.to] = id;
  value.readers[move.to] = 0;
  value.valid |= bit(move.to);
  state.cursor = is(Mistake::brings_without_another_look) ? static_cast<Byte>(state.cursor + 1) : Byte{0};
  bring_copies(state);
}

/// CallValues::note.
void Protocol::note_use(State& state, Byte id) const {
  const Call& call = this->call(state, id);
  state.cursor = 0;
  for (Byte copy = 0; copy < kCopies; ++copy) {
    Value& value = state.values[value_in(copy)];
    const Byte rank = rank_in(copy);
    if (uses_copy(call, copy)) value.used[rank] = id;
    const bool is_made_here =
        ((call.writes | call.makes) & bit(value_in(copy))) != 0 && (ranks_of(call) & bit(rank)) != 0;
    if (!is_made_here) continue;
    value.valid = is(Mistake::write_leaves_copies_valid) ? static_cast<Byte>(value.valid | bit(rank)) : bit(rank);
    value.written[rank] = value.used[rank] = id;
    value.readers[rank] = 0;
    value.home = rank;
  }
  go_to_mark(state, 0);
}

/// The next step of mark_spare_copies, from this copy on. The program goes on when all are marked.
void Protocol::go_to_mark(State& state, Byte from) const {
  const Call& call = this->call(state, static_cast<Byte>(state.next - 1));
  state.cursor = find_copy(from, [&](Byte copy) {
    const Value& value = state.values[value_in(copy)];
    const Byte rank = rank_in(copy);
    const bool is_used = ((call.reads | call.writes) & bit(value_in(copy))) != 0 && value.used[rank] != 0;
    const bool stays = value.home == rank && !is(Mistake::marks_the_home);
    return is_used && !stays && (value.readers[rank] == 0 || is(Mistake::marks_what_is_read));
  });
  if (state.cursor < kCopies && scenario_.drops != 0) return go(state.master, mark_copies);
  state.is_writing = state.cursor = 0;
  go(state.master, decide);
}

/// SpareCopy::mark.
void Protocol::mark_copy(State& state) const {
  Value& value = state.values[value_in(state.cursor)];
  const Byte rank = rank_in(state.cursor);
  if (value.spare[rank] != kDropped) value.spare[rank] = static_cast<Byte>(value.used[rank] + 1);
  go_to_mark(state, static_cast<Byte>(state.cursor + 1));
}

/// A command has failed, or must fail: what it should have made does not come into being. A move that has failed also
/// leaves nothing to a later command that writes the same copy.
void Protocol::note_unfinished(State& state, Byte id) const {
  const Byte makes = call(state, id).makes;
  for (Byte index = 0; index < kMostValues; ++index) {
    if ((makes & bit(index)) != 0 && !is(Mistake::failed_maker_leaves_the_value)) state.values[index].has_failed = 1;
  }
  if (!is_move(state, id) || is(Mistake::failed_move_leaves_the_copy_valid)) return;
  const Move move = move_of(state, id);
  Value& value = state.values[move.value];
  Byte last = static_cast<Byte>(state.next - 1);  // that filled the copy
  while (last != id &&
         !(is_move(state, last) && move_of(state, last).to == move.to && move_of(state, last).value == move.value)) {
    --last;
  }
  const bool was_written = is(Mistake::write_hides_a_failed_move) && value.written[move.to] != id;
  if (last != id || was_written) return;
  value.valid = without(value.valid, move.to);
  if (value.valid == 0) value.has_failed = 1;
}

}  // namespace model
