// How the master begins and ends sessions, and the job (SessionCore, NodesPool, NodeGroup).

#include <algorithm>

#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

// ---- messages to agents -----------------------------------------------------------------------------------------

/// A message to a process that has ended, or over a link that is down, arrives nowhere. The master sends nothing to
/// nodes that are lost.
void Protocol::send_to_agent(State& state, int node, Message message) const {
  Node& to = node_in(state, node);
  if (to.is_lost != 0 || to.is_cut != 0 || to.life == NodeLife::dead || to.life == NodeLife::over) return;
  push(state, to_agent(state, node), message);
}

void Protocol::send_to_agents(State& state, Message message) const {
  message.session = state.master.session;
  for (int node = 1; node < nodes(); ++node) send_to_agent(state, node, message);
}

bool Protocol::have_all_nodes(const State& state, Byte Node::*fact) const noexcept {
  return std::all_of(state.nodes.begin() + 1, state.nodes.begin() + nodes(), [&](const Node& node) {
    return node.*fact != 0 || (node.is_lost != 0 && !is(Mistake::awaits_a_lost_node));
  });
}

/// True if all nodes have named their devices, or later, if all their workers are ready.
bool Protocol::have_all_answered(const State& state) const noexcept {
  for (int node = 1; node < nodes(); ++node) {
    int workers = 0;
    for (int rank = 0; rank < ranks(); ++rank) workers += node_of(rank) == node ? 1 : 0;
    if (node_in(state, node).answer < (state.master.pc == await_devices ? 1 : workers)) return false;
  }
  return true;
}

// ---- the start of a session -------------------------------------------------------------------------------------

/// gather_devices.
void Protocol::open(State& state) const {
  ++state.master.session;
  state.master.reason = Reason::none;
  for (int node = 1; node < nodes(); ++node) node_in(state, node).answer = node_in(state, node).has_refused = 0;
  send_to_agents(state, {.kind = Kind::open});
  state.master.pc = await_devices;
}

/// NodesPool::start, or an error if a node has refused.
void Protocol::start(State& state) const {
  Master& master = state.master;
  const auto is_lost = [](const Node& node) { return node.is_lost != 0; };
  const auto has_refused = [](const Node& node) { return node.has_refused != 0; };
  if (std::any_of(state.nodes.begin(), state.nodes.end(), is_lost)) {
    master.reason = master.reason == Reason::none ? Reason::node_silent : master.reason;
    master.pc = leave;
    return;
  }
  if (std::any_of(state.nodes.begin(), state.nodes.end(), has_refused)) {
    master.reason = Reason::refused;
    return go_to_next_session(state);
  }
  master.next = master.first_change = 1;
  master.collected = master.lost = master.fault = 0;
  master.results = master.inherited = master.dependencies = master.slot_of = {};
  state.ran = state.failed = {};
  for (int node = 0; node < nodes(); ++node) {
    Node& there = node_in(state, node);
    there.told = 1;
    there.has_rows = there.answer = there.has_ended = 0;
  }
  for (Rank& rank : state.ranks) {
    rank.seen_done = rank.seen_consumed = rank.seen_lost = 0;
    rank.seen = {};
    rank.seen_end = End::none;
  }
  node_in(state, 0).slots = {};
  node_in(state, 0).expects_ends = 0;
  start_workers(state, 0);
  send_to_agents(state, {.kind = Kind::start});
  master.pc = await_ready;
}

// ---- the end of a session ---------------------------------------------------------------------------------------

/// SessionCore::end_with_loss. How the first lost rank has ended says why, unless a node is lost.
void Protocol::end_with_loss(State& state) const {
  Master& master = state.master;
  if (master.fault != 0)
    return end_session(state, node_in(state, master.fault).has_refused != 0 ? Reason::refused : master.reason);
  master.pc = await_end_of_lost;
}

/// SessionCore::end_with, abandon; NodesPool::end.
void Protocol::end_session(State& state, Reason reason) const {
  Master& master = state.master;
  if (reason == Reason::rank_lost) {
    const int rank = master.lost - 1;
    const Rank& worker = rank_in(state, rank);
    const bool is_node_well = node_in(state, node_of(rank)).is_lost == 0;
    if (node_of(rank) != 0 && is_node_well) expect(state, worker.seen_done == worker.done, Property::loss_comes_last);
    expect(state, node_of(rank) == 0 || worker.seen_lost != 0, Property::fault_is_named);
    expect(state, !is_node_well || worker.end == End::killed, Property::first_loss_is_named);
  }
  master.reason = reason;
  forget_session(state);
  send_to_agents(state, {.kind = Kind::end});
  master.pc = await_ended;
}

/// SessionCore::close, after it has waited for all calls.
void Protocol::close(State& state) const {
  const bool has_all_results = state.master.collected == static_cast<Byte>(bit(state.master.next) - 2);
  expect(state, has_all_results, Property::every_call_has_a_result);
  const auto expect_ends = [&] {
    node_in(state, 0).expects_ends = 1;
    send_to_agents(state, {.kind = Kind::expect_ends});
  };
  if (!is(Mistake::close_before_expect_ends)) expect_ends();
  publish(state);
  if (is(Mistake::close_before_expect_ends)) expect_ends();
  state.master.collected |= bit(state.master.next - 1);
  state.master.pc = await_ends;
}

/// await_ends_at_close.
void Protocol::await_all_ends(State& state) const {
  if (state.master.fault != 0) return end_with_loss(state);
  Reason reason = Reason::well;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Rank& worker = rank_in(state, rank);
    if ((node_of(rank) == 0 ? worker.end : worker.seen_end) == End::killed) reason = Reason::rank_lost;
  }
  state.master.reason = reason;
  forget_session(state);
  send_to_agents(state, {.kind = Kind::end});
  state.master.pc = await_ended;
}

/// The program tries again, or has closed its session and opens another one. After a loss, it ends.
void Protocol::go_to_next_session(State& state) const {
  Master& master = state.master;
  const bool may_go_on = master.reason == Reason::refused || master.reason == Reason::well;
  master.pc = may_go_on && master.session < scenario_.sessions ? open_session : leave;
  master.lost = master.fault = 0;
}

/// NodeGroup::leave.
void Protocol::say_farewell(State& state) const {
  Message message{.kind = Kind::bye};
  message.id = static_cast<Byte>(state.master.reason);
  const bool is_well = state.master.reason == Reason::well;
  if (is_well || !is(Mistake::no_farewell_after_a_failure)) send_to_agents(state, message);
  end_master(state, over);
}

}  // namespace model::nodes
