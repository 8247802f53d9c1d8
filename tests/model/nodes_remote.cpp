// What the master sends to agents, and what it does with their messages (RemoteNodes, NodesPool, NodeGroup).

#include <algorithm>

#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

/// RemoteNodes::publish_to: the changes of the heap that the node does not know, and rows that it does not have.
void Protocol::send_command(State& state, int node, Byte id) const {
  Node& there = node_in(state, node);
  Message message{.kind = Kind::command, .session = state.master.session};
  message.id = id;
  message.slot = state.master.slot_of[id];
  for (Byte change = std::max(there.told, state.master.first_change); change <= id; ++change)
    message.changes |= bit(change);
  there.told = static_cast<Byte>(id + 1);
  if (call(id).reads_rows && there.has_rows == 0) message.has_rows = there.has_rows = 1;
  for_each_rank_of(id, node, [&](int rank) {
    message.consumed[static_cast<std::size_t>(local_rank(rank))] = rank_in(state, rank).seen_consumed;
  });
  send_to_agent(state, node, message);
}

void Protocol::send_to_master(State& state, int node, Message message) const {
  Node& from = node_in(state, node);
  const bool is_over = state.master.pc == over || state.master.pc == dead;
  if (from.is_lost != 0 || from.is_cut != 0 || is_over) return;
  push(state, to_master(state, node), message);
}

// ---- what arrives -------------------------------------------------------------------------------------------------

/// Otherwise, messages wait (NodeGroup::listen).
bool Protocol::listens(const State& state) const noexcept {
  return state.master.pc != open_session && state.master.pc != leave;
}

bool Protocol::is_silent(const State& state, int node) const noexcept {
  const Node& there = node_in(state, node);
  if (there.is_cut != 0 || there.life == NodeLife::stopped) return true;
  return (there.life == NodeLife::dead || there.life == NodeLife::over) && to_master(state, node).count == 0;
}

void Protocol::step_messages(const State& state, int node, const Visit& visit) const {
  const Node& there = node_in(state, node);
  const auto visit_after = [&](Kind kind, Byte id, auto change) {
    State next = state;
    change(next);
    visit(next, {Step::Who::delivery_to_master, static_cast<Byte>(node), static_cast<Byte>(kind), id});
  };
  if (there.is_lost == 2) {  // only with a mistake
    return visit_after(Kind::none, 0, [&](State& next) {
      node_in(next, node).is_lost = 1;
      note_fault(next, node);
    });
  }
  if (there.is_lost != 0) return;
  if (listens(state) && to_master(state, node).count != 0) {
    const Message& first = to_master(state, node).messages.front();
    visit_after(first.kind, first.id, [&](State& next) { take_message(next, node); });
  }
  if (is_silent(state, node))
    visit_after(Kind::none, 0, [&](State& next) {
      const bool is_fault_known = node_in(next, node).reason != Reason::node_fault || node_in(next, node).is_cut != 0;
      expect(next, is_fault_known, Property::fault_is_named);
      if (next.master.reason == Reason::none) next.master.reason = Reason::node_silent;
      lose(next, node);
    });
}

void Protocol::take_message(State& state, int node) const {
  const Message message = to_master(state, node).messages.front();
  // With a mistake, a message is handled in two steps: the first one stores `done`.
  if (is(Mistake::done_before_the_report) && message.kind == Kind::done &&
      rank_in(state, message.rank).seen_done != message.id) {
    rank_in(state, message.rank).seen_done = message.id;
    return;
  }
  pop(to_master(state, node));
  switch (message.kind) {
    case Kind::devices:
    case Kind::start_failed: return take_answer(state, node, message);
    case Kind::fault:
      if (state.master.reason == Reason::none) state.master.reason = Reason::node_fault;
      return lose(state, node);
    default:
      if (state.master.pc == await_devices) return;  // Gathering ignores it
      return take_of_session(state, node, message);
  }
}

/// Gathering::on_message. An answer to an earlier question says nothing about this one.
void Protocol::take_answer(State& state, int node, const Message& message) const {
  Node& there = node_in(state, node);
  const bool is_answer_to_open = message.id == 0;
  if (!is_answer_to_open && state.master.pc != await_devices) return take_of_session(state, node, message);
  const bool is_current = is_answer_to_open && message.session == state.master.session;
  if (state.master.pc != await_devices || (!is_current && !is(Mistake::answers_have_no_number))) {
    expect(state, state.master.pc == await_devices, Property::message_is_expected);
    return;
  }
  expect(state, is_current, Property::old_session_is_over);
  if (message.kind == Kind::devices) there.answer = 1;
  else there.has_refused = 1;
}

/// NodesPool::on_message.
void Protocol::take_of_session(State& state, int node, const Message& message) const {
  Node& there = node_in(state, node);
  expect(state, message.session == state.master.session, Property::old_session_is_over);
  if (state.master.pc == await_ended && message.kind != Kind::ended) return;  // it changes nothing any more
  switch (message.kind) {
    case Kind::ready: ++there.answer; return;
    case Kind::done: return take_done(state, message);
    case Kind::rank_lost: rank_in(state, message.rank).seen_lost = 1; return note_loss(state, message.rank);
    case Kind::rank_end: rank_in(state, message.rank).seen_end = static_cast<End>(message.id); return;
    case Kind::start_failed: there.has_refused = 1; return note_fault(state, node);
    case Kind::ended: there.has_ended = 1; return;
    default: expect(state, false, Property::message_is_expected);
  }
}

/// RemoteNodes::take_rank_done. The command that was in this place before has been collected, or this one would not
/// have been published.
void Protocol::take_done(State& state, const Message& message) const {
  Rank& worker = rank_in(state, message.rank);
  Outcome& report = worker.seen[place_of(message.id, message.rank)];
  const bool is_free = report.command == 0 || !is_in_flight(state, report.command);
  expect(state, is_free || report.command == message.id, Property::place_is_not_reused);
  report = message.report;
  Slot& slot = node_in(state, 0).slots[message.slot];
  expect(state, slot.id == message.id, Property::slot_is_not_reused);
  if (report.vote == Vote::failed) slot.failed = message.id;
  worker.seen_done = message.id;
}

// ---- losses -------------------------------------------------------------------------------------------------------

/// note_loss (master/pool/worker_watcher.hpp).
void Protocol::note_loss(State& state, int rank) const {
  if (state.master.lost == 0) state.master.lost = static_cast<Byte>(rank + 1);
}

void Protocol::note_fault(State& state, int node) const {
  if (state.master.fault == 0) state.master.fault = static_cast<Byte>(node);
  if (!is(Mistake::awaits_a_lost_node)) node_in(state, node).has_ended = 1;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == node) note_loss(state, rank);
  }
}

/// NodeGroup::lose. Nothing more comes from the node.
void Protocol::lose(State& state, int node) const {
  Node& there = node_in(state, node);
  there.is_lost = 1;
  to_master(state, node) = {};
  const bool is_in_session = state.master.pc >= await_ready && state.master.pc <= await_ended;
  if (!is_in_session) return;
  if (!is(Mistake::loss_before_fault)) return note_fault(state, node);
  there.is_lost = 2;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == node) note_loss(state, rank);
  }
}

}  // namespace model::nodes
