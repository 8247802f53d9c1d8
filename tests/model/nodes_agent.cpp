// An agent: what it does with messages, and what it reports (Agent, NodeSession, AgentRole).

#include <algorithm>

#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

void Protocol::step_agent(const State& state, int node, const Visit& visit) const {
  const Node& agent = node_in(state, node);
  if (to_agent(state, node).count != 0) step_deliveries(state, node, visit);
  const auto visit_after = [&](Step::Who who, Kind kind, Byte id, auto change) {
    State next = state;
    change(next);
    visit(next, {who, static_cast<Byte>(node), static_cast<Byte>(kind), id});
  };
  // Rows travel beside messages. They are a single transfer in a scenario.
  if (agent.has_rows != 0 && agent.rows == 0 && agent.session != 0 && agent.is_cut == 0)
    visit_after(Step::Who::rows, Kind::none, 0, [&](State& next) { node_in(next, node).rows = 1; });
  const Entry first = agent.waiting.front();
  if (first.id != 0 && has_rows_for(state, node, first.id)) {
    visit_after(Step::Who::agent, Kind::command, first.id, [&](State& next) {
      Node& there = node_in(next, node);
      there.waiting = {there.waiting[1], there.waiting[2], Entry{}};
      begin(next, node, first);
    });
  }
  for (int rank = 0; rank < ranks() && agent.session != 0; ++rank) {
    if (node_of(rank) == node) step_reports(state, rank, visit);
  }
  if (!is_master_silent(state, node) || is(Mistake::agent_ignores_silence)) return;
  visit_after(Step::Who::agent, Kind::none, 0, [&](State& next) {
    const bool is_true = agent.is_cut != 0 || state.master.pc == dead || agent.is_lost != 0;
    expect(next, is_true, Property::verdict_is_passed_on);
    end_agent(next, node, Reason::master_silent);
  });
}

/// NodeGroup::check_silence. A master that has ended in order, or has lost this node, sends nothing more.
bool Protocol::is_master_silent(const State& state, int node) const noexcept {
  const Node& agent = node_in(state, node);
  if (agent.is_cut != 0 || state.master.pc == dead) return true;
  return (state.master.pc == over || agent.is_lost != 0) && to_agent(state, node).count == 0;
}

// ---- messages of the master -----------------------------------------------------------------------------------------

void Protocol::step_deliveries(const State& state, int node, const Visit& visit) const {
  const Message& first = to_agent(state, node).messages.front();
  const Step step{Step::Who::delivery_to_agent, static_cast<Byte>(node), static_cast<Byte>(first.kind), first.id};
  State next = state;
  handle(next, node);
  visit(next, step);
  const bool may_be_refused = first.kind == Kind::open || first.kind == Kind::start;
  if (may_be_refused && state.refusals < scenario_.refusals) {
    next = state;
    refuse(next, node);
    visit(next, step);
  }
  if (first.kind != Kind::command || !may_happen(state, Mishap::agent_fails)) return;
  next = state;
  fail(next, node);
  visit(next, step);
}

/// The devices of the node do not exist, or its workers do not start.
void Protocol::refuse(State& state, int node) const {
  ++state.refusals;
  const Message message = pop(to_agent(state, node));
  Message answer{.kind = Kind::start_failed, .session = message.session};
  answer.id = message.kind == Kind::start ? 1 : 0;
  send_to_master(state, node, answer);
}

/// The agent cannot handle a command, for lack of memory. It says so and ends.
void Protocol::fail(State& state, int node) const {
  ++state.mishaps;
  if (!is(Mistake::fault_is_not_sent)) send_to_master(state, node, {.kind = Kind::fault});
  end_agent(state, node, Reason::node_fault);
}

void Protocol::handle(State& state, int node) const {
  Node& agent = node_in(state, node);
  const Message message = pop(to_agent(state, node));
  switch (message.kind) {
    case Kind::open: return send_to_master(state, node, {.kind = Kind::devices, .session = message.session});
    case Kind::start:
      agent.session = message.session;
      agent.expects_ends = agent.first_lost = agent.rows = agent.changes = agent.spoiled = 0;
      agent.slots = {};
      start_workers(state, node);
      for (int rank = 0; rank < ranks(); ++rank) {
        if (node_of(rank) == node) send_to_master(state, node, {.kind = Kind::ready, .session = message.session});
      }
      return;
    case Kind::end:
      end_workers(state, node);
      return send_to_master(state, node, {.kind = Kind::ended, .session = message.session});
    case Kind::bye:
      expect(state, message.id != 0, Property::verdict_is_passed_on);
      return end_agent(state, node, static_cast<Reason>(message.id));
    default:
      if (agent.session != 0) handle_of_session(state, node, message);  // else its start has failed
  }
}

void Protocol::handle_of_session(State& state, int node, const Message& message) const {
  Node& agent = node_in(state, node);
  expect(state, message.session == agent.session, Property::old_session_is_over);
  switch (message.kind) {
    case Kind::command: return take_command(state, node, message);
    case Kind::spoil: {
      agent.spoiled |= bit(message.id);
      bool has_begun = false;
      for_each_rank_of(message.id, node, [&](int rank) {
        has_begun = has_begun || rank_in(state, rank).inbox[place_of(message.id, rank)].id == message.id;
      });
      if (!has_begun || !is(Mistake::spoil_is_ignored_once_begun)) agent.slots[message.slot].spoiled = message.id;
      return;
    }
    case Kind::expect_ends: agent.expects_ends = 1; return;
    default: expect(state, false, Property::message_is_expected);
  }
}

// ---- Agent::take_command, begin -----------------------------------------------------------------------------------

/// One step: a worker reads nothing of it before its entry in the inbox.
void Protocol::take_command(State& state, int node, const Message& message) const {
  Node& agent = node_in(state, node);
  agent.changes |= message.changes;
  Slot& slot = agent.slots[message.slot];
  bool is_needed = std::any_of(agent.waiting.begin(), agent.waiting.end(),
                               [&](Entry entry) { return entry.id != 0 && entry.slot == message.slot; });
  for_each_rank_of(slot.id, node, [&](int rank) {
    const Rank& worker = rank_in(state, rank);
    is_needed = is_needed || (slot.id != 0 && (worker.done < slot.id || (worker.given & bit(slot.id)) != 0));
  });
  expect(state, !is_needed, Property::slot_is_not_reused);
  slot.id = message.id;
  for_each_rank_of(message.id, node, [&](int rank) {
    rank_in(state, rank).consumed = message.consumed[static_cast<std::size_t>(local_rank(rank))];
  });
  const Entry command{message.id, message.slot};
  const bool is_first = agent.waiting.front().id == 0 || is(Mistake::begins_out_of_order);
  const bool needs_rows = message.has_rows != 0 && !is(Mistake::begins_before_rows);
  if (is_first && !needs_rows) return begin(state, node, command);
  expect(state, agent.waiting.back().id == 0, Property::message_is_expected);
  *std::find_if(agent.waiting.begin(), agent.waiting.end() - 1, [](Entry entry) { return entry.id == 0; }) = command;
}

/// Only the first command that reads the rows waits for them. The others wait behind it.
bool Protocol::has_rows_for(const State& state, int node, Byte id) const noexcept {
  return !call(id).reads_rows || node_in(state, node).rows != 0;
}

void Protocol::begin(State& state, int node, Entry command) const {
  for_each_rank_of(command.id, node, [&](int rank) {
    Rank& worker = rank_in(state, rank);
    const Byte place = place_of(command.id, rank);
    const Byte old = worker.inbox[place].id;
    const bool is_free = old == 0 || (worker.done >= old && (worker.given & bit(old)) == 0);
    expect(state, is_free, Property::place_is_not_reused);
    // The worker may write nothing into its outbox. What an earlier command left there is no report.
    if (!is(Mistake::stale_vote_is_reported)) worker.outboxes[place].vote = Vote::none;
    worker.given |= bit(command.id);
    worker.inbox[place] = command;
  });
}

// ---- Agent::report, NodeSession::report_losses, report_ends -------------------------------------------------------

void Protocol::step_reports(const State& state, int rank, const Visit& visit) const {
  const Rank& worker = rank_in(state, rank);
  const Node& agent = node_in(state, node_of(rank));
  const auto visit_after = [&](Kind kind, Byte id, auto change) {
    State next = state;
    change(next);
    visit(next, {Step::Who::agent, static_cast<Byte>(node_of(rank)), static_cast<Byte>(kind), id});
  };
  if (const Byte id = next_report(state, rank); id != 0)
    visit_after(Kind::done, id, [&](State& next) { report_done(next, rank); });
  if (may_report_loss(state, rank)) visit_after(Kind::rank_lost, 0, [&](State& next) { report_loss(next, rank); });
  // A process is reaped after its loss was noted.
  const bool is_reaped = worker.end != End::none && (worker.is_lost != 0 || agent.expects_ends != 0);
  if (!is_reaped || worker.has_told_end != 0) return;
  visit_after(Kind::rank_end, 0, [&](State& next) {
    rank_in(next, rank).has_told_end = 1;
    Message message{.kind = Kind::rank_end, .session = agent.session, .rank = static_cast<Byte>(rank)};
    message.id = static_cast<Byte>(worker.end);
    send_to_master(next, node_of(rank), message);
  });
}

/// The first command that the rank has finished and the agent has not reported, or 0.
Byte Protocol::next_report(const State& state, int rank) const noexcept {
  const Rank& worker = rank_in(state, rank);
  for (Byte id = 1; id <= calls_count(); ++id) {
    if ((worker.given & bit(id)) == 0) continue;
    const bool is_taken = is(Mistake::reports_what_was_only_taken) && worker.id >= id;
    return worker.done >= id || is_taken ? id : 0;
  }
  return 0;
}

void Protocol::report_done(State& state, int rank) const {
  Rank& worker = rank_in(state, rank);
  const Byte id = next_report(state, rank);
  worker.given = static_cast<Byte>(worker.given & ~bit(id));
  Message message{
      .kind = Kind::done, .session = node_in(state, node_of(rank)).session, .rank = static_cast<Byte>(rank)};
  message.id = id;
  const Entry entry = worker.inbox[place_of(id, rank)];
  message.slot = entry.slot;
  message.report = worker.outboxes[place_of(id, rank)];
  const bool has_outputs = message.report.vote != Vote::ok || (worker.outputs & bit(id)) != 0;
  const bool is_of_this = message.report.command == id && has_outputs;
  expect(state, entry.id == id && (is_of_this || !call(id).writes_outbox), Property::report_is_of_this_command);
  send_to_master(state, node_of(rank), message);
}

/// A loss is told after all that the rank had finished, and the loss of the first rank before those of its peers, which
/// end because of it.
bool Protocol::may_report_loss(const State& state, int rank) const noexcept {
  const Rank& worker = rank_in(state, rank);
  const int first = node_in(state, node_of(rank)).first_lost - 1;
  if (worker.is_lost == 0 || worker.has_told_loss != 0) return false;
  if (is(Mistake::ended_rank_is_not_lost) && worker.has_told_end != 0) return false;
  const bool is_first = first == rank || rank_in(state, first).has_told_loss != 0;
  if (!is_first && !is(Mistake::peer_of_the_lost_rank_is_named)) return false;
  return next_report(state, rank) == 0 || is(Mistake::loss_overtakes_done);
}

void Protocol::report_loss(State& state, int rank) const {
  rank_in(state, rank).has_told_loss = 1;
  const Byte session = node_in(state, node_of(rank)).session;
  send_to_master(state, node_of(rank), {.kind = Kind::rank_lost, .session = session, .rank = static_cast<Byte>(rank)});
}

}  // namespace model::nodes
