// What the master of the model knows of values: master/api/call_values.cpp, master/values/value_copies.cpp.

#include <algorithm>
#include <bit>

#include "tests/model/protocol.hpp"
#include "tests/model/steps.hpp"

namespace model {

namespace {

constexpr Byte kCopies = kMostValues * kMostWorkers;
constexpr Byte kHasSuccessor = 128;  // a bit of State::marking: a copy can take the place of the home

constexpr Byte value_in(Byte copy) noexcept { return copy / kMostWorkers; }
constexpr Byte rank_in(Byte copy) noexcept { return copy % kMostWorkers; }
Byte first_of(Byte values) noexcept { return static_cast<Byte>(std::countr_zero(values)); }

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
  state.is_writing = 1;
  if (next_call(state).to_host != 0) return bring_copies(state);
  if (must_refuse(state)) return refuse_call(state);
  claim_copies_from(state, 0);
}

bool Protocol::must_refuse(const State& state) const noexcept {
  const Call& call = next_call(state);
  for (Byte value = 0; value < kMostValues; ++value) {
    const bool uses = ((call.reads | call.writes | call.to_host) & bit(value)) != 0;
    if (uses && state.values[value].has_failed != 0) return true;
  }
  return false;
}

/// A value that has failed is nowhere. After a loss, a copy may be left from before a write that was lost.
void Protocol::check_refused(State& state) const {
  if (scenario_.deaths != 0) return;
  for (Byte index = 0; index < kMostValues; ++index) {
    if ((values_of(next_call(state)) & bit(index)) == 0 || state.values[index].has_failed == 0) continue;
    for (int rank = 0; rank < workers(); ++rank) {
      const Byte contents = state.values[index].contents[static_cast<std::size_t>(rank)];
      expect(state, !is_as_written(state, state.next, index, contents), Property::value_is_not_given_up);
    }
  }
}

void Protocol::refuse_call(State& state) const {
  check_refused(state);
  ++state.calls;
  state.is_writing = state.aside = state.cursor = 0;
  go(state.master, decide);
}

/// CallValues::needs_copies, and bring_missing once the call was put aside: claims the copies, one per step, and brings
/// those that are not valid. A claim of a copy that is needed writes nothing, and only the master changes that state.
void Protocol::claim_copies_from(State& state, Byte from) const {
  const Call& call = next_call(state);
  const bool brings = state.aside != 0 || call.only_brings;
  const auto is_missing = [&](Byte copy) {
    return uses_copy(call, copy) && (state.values[value_in(copy)].valid & bit(rank_in(copy))) == 0;
  };
  const auto must_be_claimed = [&](Byte copy) {
    const Value& value = state.values[value_in(copy)];
    if (is(Mistake::destination_is_not_claimed) && (value.valid & bit(rank_in(copy))) == 0) return false;
    return uses_copy(call, copy) && value.spare[rank_in(copy)] != kNeeded;
  };
  state.cursor = find_copy(from, [&](Byte copy) { return must_be_claimed(copy) || (brings && is_missing(copy)); });
  if (state.cursor < kCopies && must_be_claimed(state.cursor)) return go(state.master, claim_copies);
  if (state.cursor < kCopies) return bring_copy(state);
  if (call.only_brings) return end_bringing(state, call.reads);
  if (state.aside == 0) {
    if (find_copy(0, is_missing) == kCopies) return go(state.master, begin_call);
    state.cursor = 0;
    state.aside = static_cast<Byte>(take_slot(state) + 1);
    return bring_copies(state);
  }
  const Byte first = blocker(state, ranks_of(call));
  if (first == 0) return go(state.master, begin_call);
  state.awaited = first_to_collect(state, first);
  go(state.master, await_call);
}

/// SpareCopy::claim, claim_copy. Returns whether the copy is valid.
bool Protocol::claim(State& state, Byte index, Byte rank) const {
  Value& value = state.values[index];
  const bool is_here = value.spare[rank] != kDropped || is(Mistake::claim_ignores_the_drop);
  if (!is_here) value.valid = without(value.valid, rank);
  value.spare[rank] = kNeeded;
  return (value.valid & bit(rank)) != 0;
}

void Protocol::claim_copy(State& state) const {
  claim(state, value_in(state.cursor), rank_in(state.cursor));
  claim_copies_from(state, state.cursor);
}

/// CallValues::bring. A wait in it may collect a failure, mark copies as spare, or deal with a loss. So the master must
/// look at all copies again after each wait. Also the loop in await_home, for a value that comes to the host.
void Protocol::bring_copies(State& state) const {
  const bool looks_again = !is(Mistake::brings_without_another_look);
  if (looks_again && must_refuse(state)) return refuse_call(state);
  if (next_call(state).to_host == 0) return claim_copies_from(state, looks_again ? Byte{0} : state.cursor);
  const Byte values = next_call(state).to_host;
  if (state.values[first_of(values)].host.is_valid == 0) return bring_copy(state);
  end_bringing(state, values);
}

/// The end of bring_value and bring_value_to_host.
void Protocol::end_bringing(State& state, Byte values) const {
  ++state.calls;
  state.cursor = state.is_writing = 0;
  begin_marking(state, values);
}

/// await_source, await_home: claims the home, and waits until the rank of the transfer has a place.
void Protocol::bring_copy(State& state) const {
  if (state.master.pc != claim_homes) go(state.master, claim_homes);
  const Move move = next_move(state);
  if (!has_home(state, move.value)) return;
  const Byte ranks = move.to == kHost ? bit(state.values[move.value].home) : bit(move.to);
  const Byte first = blocker(state, ranks);
  if (first == 0) return go(state.master, begin_move);
  state.awaited = first_to_collect(state, first);
  go(state.master, await_call);
}

/// The move that the master is about to publish.
Protocol::Move Protocol::next_move(const State& state) const noexcept {
  const Byte values = next_call(state).to_host;
  const Byte index = values != 0 ? first_of(values) : value_in(state.cursor);
  return {index, state.values[index].home, values != 0 ? kHost : rank_in(state.cursor)};
}

// ---- the home -----------------------------------------------------------------------------------------------------

/// True if the rank has the values already.
bool Protocol::has_arrived(const State& state, const Value& value, Byte rank) noexcept {
  return (value.valid & bit(rank)) != 0 && !is_in_flight(state, value.written[rank]);
}

/// claim_home, up to its next access to a copy. Returns true if there is none any more. While the master looks for
/// another home, it keeps 1 + the next rank.
bool Protocol::has_home(State& state, Byte index) const {
  Value& value = state.values[index];
  Byte& scan = state.master.scan;
  if (scan == 0) {
    if (value.home >= kHost) return true;
    if (value.spare[value.home] != kNeeded) return false;
    if ((value.valid & bit(value.home)) != 0 || is(Mistake::home_is_not_claimed)) return true;
    value.home = kHost;
    scan = 1;
  }
  for (; scan <= workers(); ++scan) {
    const auto rank = static_cast<Byte>(scan - 1);
    if ((value.valid & bit(rank)) == 0) continue;
    if (value.spare[rank] != kNeeded) return false;
    if (value.home == kHost) value.home = rank;
    if (!has_arrived(state, value, rank)) continue;
    value.home = rank;
    break;
  }
  scan = 0;
  expect(state, value.home != kHost || value.host.is_valid != 0, Property::last_copy_is_not_dropped);
  return true;
}

void Protocol::claim_next_home(State& state, Byte index) const {
  Value& value = state.values[index];
  Byte& scan = state.master.scan;
  if (scan != 0) {
    claim(state, index, static_cast<Byte>(scan - 1));
    return;
  }
  const bool is_here = claim(state, index, value.home) || is(Mistake::home_is_not_claimed);
  if (is_here) return;
  value.home = kHost;
  scan = 1;
}

// ---- dependencies -------------------------------------------------------------------------------------------------

/// The next command depends on the command that writes a copy. If the writer must fail, and the program knows, then the
/// copy keeps what it had, and the command only has to come after the writer.
void Protocol::depend_on_writer(State& state, Byte writer) const {
  if (!is_in_flight(state, writer)) return;
  const bool is_doomed = state.inherited[writer] != 0 && !is(Mistake::depends_on_doomed_writes);
  if (!is_doomed) state.dependencies[state.next] |= bit(writer);
}

/// bring_from_rank, bring_from_host, bring_to_host.
void Protocol::find_dependencies_of_move(State& state) const {
  const Byte id = state.next;
  const Move move = move_of(state, id);
  const Value& value = state.values[move.value];
  const HostCopy& host = value.host;
  if (move.to == kHost) {
    depend_on_writer(state, value.written[move.from]);
    state.waits[id] |= host.readers;
    const bool waits = host.by != move.from && !is(Mistake::transfer_ignores_the_one_before);
    if (waits && is_in_flight(state, host.written)) state.waits[id] |= bit(host.written);
    return;
  }
  const Byte writer = move.from == kHost ? host.written : value.written[move.from];
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

/// The end of bring_from_rank, of bring_from_host, of bring_copy and of bring_to_host.
void Protocol::note_move(State& state, Byte id) const {
  const Move move = move_of(state, id);
  Value& value = state.values[move.value];
  if (move.to == kHost) {
    value.host.written = id;
    value.host.by = move.from;
    value.host.is_valid = value.host.has_memory = 1;
    if (!is(Mistake::transfer_is_no_use)) value.used[move.from] = id;
    return end_bringing(state, bit(move.value));
  }
  (move.from == kHost ? value.host.readers : value.readers[move.from]) |= bit(id);
  value.written[move.to] = value.brought[move.to] = value.used[move.to] = id;
  value.readers[move.to] = 0;
  value.valid |= bit(move.to);
  if (value.home == kHost) value.home = move.to;
  state.cursor = is(Mistake::brings_without_another_look) ? static_cast<Byte>(state.cursor + 1) : Byte{0};
  bring_copies(state);
}

/// CallValues::note.
void Protocol::note_use(State& state, Byte id) const {
  const Call& call = this->call(state, id);
  state.cursor = state.is_writing = 0;
  for (Byte copy = 0; copy < kCopies; ++copy) {
    Value& value = state.values[value_in(copy)];
    const Byte rank = rank_in(copy);
    if (uses_copy(call, copy)) value.used[rank] = id;
    const bool is_made_here =
        ((call.writes | call.makes) & bit(value_in(copy))) != 0 && (ranks_of(call) & bit(rank)) != 0;
    if (!is_made_here) continue;
    keep_sources(state, value_in(copy), rank);
    value.valid = is(Mistake::write_leaves_copies_valid) ? static_cast<Byte>(value.valid | bit(rank)) : bit(rank);
    value.written[rank] = value.used[rank] = id;
    value.readers[rank] = 0;
    value.home = rank;
    free_host_copy(state, value_in(copy));
  }
  begin_marking(state, call.reads | call.writes);
}

void Protocol::keep_sources(State& state, Byte index, Byte rank) const {
  Value& value = state.values[index];
  if (is(Mistake::write_forgets_the_source)) return;
  const auto known = static_cast<Byte>(std::bit_width(value.risky_moves) - 1);
  const bool knows_any = value.risky_moves != 0;
  Byte place = rank;
  for (Byte later = state.next;;) {
    const Byte brought = place == kHost ? value.host.written : value.brought[place];
    if (brought == 0 || (knows_any && brought <= known) || brought >= later) return;
    value.risky_moves |= bit(brought);
    later = brought;
    place = move_of(state, brought).from;
  }
}

/// ValueState::go_back_to_source.
void Protocol::go_back_to_source(State& state, Byte id) const {
  const Move move = move_of(state, id);
  Value& value = state.values[move.value];
  value.risky_moves &= static_cast<Byte>(bit(id) - 1);
  value.valid = value.host.is_valid = 0;
  value.home = move.from;
  const Byte writer = last_writer(state, id, move.value, move.from);
  const Byte written = is_in_flight(state, writer) ? writer : Byte{0};
  if (move.from == kHost) {
    value.host.is_valid = 1;
    value.host.written = written;
    value.host.by = written == 0 ? Byte{0} : move_of(state, written).from;
    return;
  }
  value.valid = bit(move.from);
  value.written[move.from] = written;
  value.brought[move.from] = 0;
}

/// The last command before this one that writes the copy at a place, or brings it there. 0 if there is none.
Byte Protocol::last_writer(const State& state, Byte id, Byte index, Byte place) const {
  while (--id != 0) {
    if (is_move(state, id) ? move_of(state, id).value == index && move_of(state, id).to == place
                           : place != kHost && ((call(state, id).writes | call(state, id).makes) & bit(index)) != 0 &&
                                 (ranks_of(state, id) & bit(place)) != 0)
      return id;
  }
  return 0;
}

void Protocol::free_host_copy(State& state, Byte index) const {
  HostCopy& host = state.values[index].host;
  host.is_valid = 0;
  const bool is_in_use = host.readers != 0 || is_in_flight(state, host.written);
  if (host.has_memory == 0 || (is_in_use && !is(Mistake::frees_host_memory_in_use))) return;
  for (Byte id = 1; id < state.next; ++id) {
    if (!is_move(state, id) || move_of(state, id).value != index) continue;
    const bool uses_host = move_of(state, id).from == kHost || move_of(state, id).to == kHost;
    expect(state, !uses_host || have_done(state, id, ranks_of(state, id)), Property::host_memory_is_not_freed);
  }
  host = {};
}

/// A move was collected.
void Protocol::note_arrival(State& state, Byte id) const {
  const Move move = move_of(state, id);
  const Value& value = state.values[move.value];
  const bool matters = move.to == kHost || (move.to != value.home && (value.valid & bit(move.to)) != 0);
  if (!matters) return go_on(state);
  begin_marking(state, bit(move.value));
}

// ---- mark_spare_copies --------------------------------------------------------------------------------------------

void Protocol::begin_marking(State& state, Byte values) const {
  state.marking = scenario_.drops == 0 ? Byte{0} : values;
  state.marks = 0;
  go(state.master, mark_copies);
  if (!has_more_to_mark(state)) go_on(state);
}

/// The state that the next copy gets. Empty if the copy stays needed. The copy of the home comes last.
std::optional<Byte> Protocol::next_mark(const State& state, Byte index) const {
  const Value& value = state.values[index];
  const bool is_of_home = state.marks > workers();
  const auto rank = is_of_home ? value.home : static_cast<Byte>(state.marks - 1);
  if (!is_of_home && rank == value.home) return std::nullopt;
  if (value.used[rank] == 0 && !had_copy_at_start(index, rank)) return std::nullopt;
  for (Byte id = 1; id < state.next && !is(Mistake::marks_what_is_read); ++id) {
    if ((value.risky_moves & bit(id)) != 0 && move_of(state, id).from == rank) return std::nullopt;
  }
  if (scenario_.pinned == rank && !is(Mistake::marks_what_is_pinned)) return std::nullopt;
  const bool is_read = value.readers[rank] != 0 && !is(Mistake::marks_what_is_read);
  const bool is_on_its_way = is_of_home && is(Mistake::successor_has_not_arrived);  // the move reads the home
  if (is_read && !is_on_its_way) return std::nullopt;
  const auto from = static_cast<Byte>(value.used[rank] + 1);
  const bool can_follow =
      has_arrived(state, value, rank) || (is(Mistake::successor_has_not_arrived) && (value.valid & bit(rank)) != 0);
  if (!is_of_home) return can_follow ? from | kIsSuccessor : from;
  const bool has_come = !is_in_flight(state, value.host.written) || is(Mistake::host_copy_has_not_arrived);
  if (value.host.is_valid != 0 && has_come) return from;
  if ((state.marking & kHasSuccessor) == 0) return std::nullopt;
  if (is(Mistake::marks_the_home_as_before)) return from | kIsHome;
  return std::max(from, static_cast<Byte>(value.marked[rank] + 1)) | kIsHome;
}

/// Goes on to the next access of mark_spare_copies. Returns false if there is none any more.
bool Protocol::has_more_to_mark(State& state) const {
  while ((state.marking & ~kHasSuccessor) != 0) {
    const Byte index = first_of(state.marking);
    Value& value = state.values[index];
    if (state.marks == 0) {
      if (!has_home(state, index)) return true;
      const int pinned = scenario_.pinned;
      const bool stays = pinned >= 0 && has_arrived(state, value, static_cast<Byte>(pinned));
      if (stays && value.home != kHost) value.home = static_cast<Byte>(pinned);
      state.marking &= static_cast<Byte>(~kHasSuccessor);
      state.marks = value.home >= kHost ? static_cast<Byte>(workers() + 2) : Byte{1};
    }
    for (; state.marks < static_cast<Byte>(workers() + 2); ++state.marks) {
      const Byte rank = state.marks > workers() ? value.home : static_cast<Byte>(state.marks - 1);
      const std::optional<Byte> mark = next_mark(state, index);
      if (!mark || value.spare[rank] == kDropped) continue;
      if (value.spare[rank] != *mark) return true;
      if ((*mark & kIsSuccessor) != 0) state.marking |= kHasSuccessor;
    }
    state.marks = 0;
    state.marking &= static_cast<Byte>(state.marking - 1);
  }
  state.marking = 0;
  return false;
}

/// SpareCopy::mark, or a claim in claim_home.
void Protocol::take_mark(State& state) const {
  const Byte index = first_of(state.marking);
  Value& value = state.values[index];
  if (state.marks == 0) return claim_next_home(state, index);
  const Byte rank = state.marks > workers() ? value.home : static_cast<Byte>(state.marks - 1);
  const Byte mark = *next_mark(state, index);
  if (value.spare[rank] != kDropped) {
    value.spare[rank] = mark;
    if ((mark & kIsSuccessor) != 0) state.marking |= kHasSuccessor;
    if ((mark & kIsHome) != 0) value.marked[rank] = spare_from(mark);
  }
  ++state.marks;
}

void Protocol::mark_copy(State& state) const {
  take_mark(state);
  if (!has_more_to_mark(state)) go_on(state);
}

/// All accesses of mark_spare_copies, while the workers have nothing to do.
void Protocol::mark_at_once(State& state, Byte index) const {
  state.marking = scenario_.drops == 0 ? Byte{0} : bit(index);
  state.marks = state.master.scan = 0;
  while (has_more_to_mark(state)) take_mark(state);
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
  if (is(Mistake::write_hides_a_failed_move) && move.to != kHost && value.written[move.to] != id) return;
  if ((value.risky_moves & bit(id)) != 0) return go_back_to_source(state, id);
  if (move.to == kHost) {
    if (value.host.written == id) value.host.is_valid = 0;
    if (value.valid == 0 && value.host.is_valid == 0) value.has_failed = 1;
    return;
  }
  if (value.brought[move.to] != id) return;
  value.valid = without(value.valid, move.to);
  if (value.home == move.to) value.home = kHost;
  if (value.valid == 0 && value.host.is_valid == 0) value.has_failed = 1;
}

}  // namespace model
