// All possible steps of a session on several nodes, and what may happen to processes and links.

#include "tests/model/nodes_protocol.hpp"

#include <algorithm>

namespace model::nodes {

// ---- the scenario -----------------------------------------------------------------------------------------------

Protocol::Protocol(const Scenario& scenario) : scenario_(scenario) {
  for (int rank = 0; rank < ranks(); ++rank) {
    all_ranks_ |= bit(rank);
    nodes_ = std::max(nodes_, node_of(rank) + 1);
    ranks_on_[static_cast<std::size_t>(node_of(rank))] |= bit(rank);
  }
}

int Protocol::local_rank(int rank) const noexcept {
  int number = 0;
  for (int other = 0; other < rank; ++other) number += node_of(other) == node_of(rank) ? 1 : 0;
  return number;
}

const Call& Protocol::call(Byte id) const noexcept {
  static const Call close{};
  return id == 0 || is_close(id) ? close : scenario_.calls[id - 1U];
}

/// The places of an inbox are used in turn.
Byte Protocol::place_of(Byte id, int rank) const noexcept {
  int earlier = 0;
  for (Byte other = 1; other < id; ++other) earlier += has_rank(other, rank) ? 1 : 0;
  return static_cast<Byte>(earlier % scenario_.places);
}

State Protocol::initial() const {
  State state{};
  if (scenario_.sessions != 0) {
    for (Rank& rank : state.ranks) rank.life = Life::dead;
    return state;
  }
  state.master.session = 1;
  state.master.pc = decide;
  state.master.next = 1;
  state.master.first_change = 1;
  for (int node = 0; node < nodes(); ++node) {
    node_in(state, node).session = 1;
    node_in(state, node).told = 1;
  }
  for (int rank = ranks(); rank < kMostRanks; ++rank) rank_in(state, rank).life = Life::dead;
  return state;
}

bool Protocol::is_proper_end(const State& state) const noexcept {
  const bool has_master_ended = state.master.pc == over || state.master.pc == dead;
  const auto has_ended = [](const Node& node) { return node.life == NodeLife::dead || node.life == NodeLife::over; };
  const auto is_dead = [](const Rank& rank) { return rank.life == Life::dead; };
  return has_master_ended && std::all_of(state.nodes.begin() + 1, state.nodes.begin() + nodes(), has_ended) &&
         std::all_of(state.ranks.begin(), state.ranks.end(), is_dead);
}

// ---- all possible steps -------------------------------------------------------------------------------------------

void Protocol::for_each_step(const State& state, const Visit& visit) const {
  const bool is_master_alive = state.master.pc != over && state.master.pc != dead;
  if (is_master_alive) step_master(state, visit);
  for (int node = 1; node < nodes(); ++node) {
    if (is_master_alive) step_messages(state, node, visit);
    if (node_in(state, node).life == NodeLife::alive) step_agent(state, node, visit);
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank_in(state, rank).life == Life::alive) step_worker(state, rank, visit);
    else step_watcher(state, rank, visit);
  }
  step_fate(state, visit);
}

// ---- processes ----------------------------------------------------------------------------------------------------

void Protocol::start_workers(State& state, int node) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == node) rank_in(state, rank) = {};
  }
}

void Protocol::kill_workers(State& state, int node) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == node) rank_in(state, rank).life = Life::dead;
  }
}

/// The memory of the session on an agent's node goes too, so that states which differ only in it are one state.
void Protocol::end_workers(State& state, int node) const {
  kill_workers(state, node);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) != node) continue;
    Rank& worker = rank_in(state, rank);
    worker = {.life = Life::dead,
              .end = worker.end,
              .done = worker.done,
              .seen_done = worker.seen_done,
              .seen = worker.seen,
              .seen_consumed = worker.seen_consumed,
              .seen_lost = worker.seen_lost,
              .seen_end = worker.seen_end};
  }
  Node& there = node_in(state, node);
  there.session = there.expects_ends = there.first_lost = there.rows = there.changes = there.spoiled = 0;
  there.waiting = {};
  there.slots = {};
}

/// The workers of an agent do not outlive it. What it has sent still arrives.
void Protocol::end_agent(State& state, int node, Reason reason) const {
  end_workers(state, node);
  node_in(state, node).life = NodeLife::over;
  node_in(state, node).reason = reason;
  to_agent(state, node) = {};
}

/// The same for the master's memory, at its end.
void Protocol::end_master(State& state, Byte pc) const {
  const Master& master = state.master;
  state.master = {.pc = pc, .reason = master.reason, .dependencies = master.dependencies, .slot_of = master.slot_of};
  state.to_masters = {};
  forget_session(state);
}

/// After this, the master uses nothing of the session any more.
void Protocol::forget_session(State& state) const {
  state.master.results = state.master.inherited = {};
  state.master.collected = 0;
  state.ran = {};
  for (Rank& rank : state.ranks) {
    rank.seen_done = rank.seen_consumed = rank.seen_lost = 0;
    rank.seen = {};
    rank.seen_end = End::none;
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == 0) rank_in(state, rank) = {.life = Life::dead};
  }
  state.nodes.front() = {};
  for (int node = 1; node < nodes(); ++node) {
    Node& there = node_in(state, node);
    there.told = there.has_rows = there.answer = 0;
  }
}

/// Nursery::raise_loss, WorkerWatcher::note_loss. The master's node has no agent: the loss is seen there at once.
void Protocol::step_watcher(const State& state, int rank, const Visit& visit) const {
  const Rank& worker = rank_in(state, rank);
  const int node = node_of(rank);
  const Node& there = node_in(state, node);
  const bool is_watched = node == 0 ? state.master.pc != over && state.master.pc != dead : there.session != 0;
  if (worker.end == End::none || worker.is_lost != 0 || !is_watched || there.expects_ends != 0) return;
  if (there.life != NodeLife::alive && there.life != NodeLife::stopped) return;
  State next = state;
  expect(next, worker.end != End::at_close, Property::end_was_expected);
  rank_in(next, rank).is_lost = 1;
  Byte& first = node_in(next, node).first_lost;
  if (first == 0) first = static_cast<Byte>(rank + 1);
  if (node == 0) note_loss(next, rank);
  visit(next, {Step::Who::watcher, static_cast<Byte>(rank), 0, 0});
}

// ---- fate -----------------------------------------------------------------------------------------------------------

bool Protocol::may_happen(const State& state, Mishap mishap) const noexcept {
  return state.mishaps < scenario_.mishaps && (scenario_.kinds & only(mishap)) != 0;
}

void Protocol::step_fate(const State& state, const Visit& visit) const {
  const bool is_over = state.master.pc == over || state.master.pc == dead;
  for (int rank = 0; rank < ranks() && may_happen(state, Mishap::worker_dies); ++rank) {
    const Rank& worker = rank_in(state, rank);
    if (worker.life == Life::dead || node_of(rank) == 0 || is_over) continue;
    State next = state;
    ++next.mishaps;
    rank_in(next, rank).life = Life::dead;
    rank_in(next, rank).end = End::killed;
    visit(next, {Step::Who::fate, static_cast<Byte>(rank), static_cast<Byte>(Mishap::worker_dies), 0});
  }
  if (!is_over && may_happen(state, Mishap::master_dies)) {
    State next = state;
    ++next.mishaps;
    end_master(next, dead);
    visit(next, {Step::Who::fate, 0, static_cast<Byte>(Mishap::master_dies), 0});
  }
  for (int node = 1; node < nodes(); ++node) step_fate_of_node(state, node, visit);
}

/// A stopped agent may continue at any time.
void Protocol::step_fate_of_node(const State& state, int node, const Visit& visit) const {
  const Node& agent = node_in(state, node);
  if (agent.life == NodeLife::dead || agent.life == NodeLife::over) return;
  const auto meet = [&](Mishap mishap, auto change) {
    if (!may_happen(state, mishap)) return;
    State next = state;
    ++next.mishaps;
    change(next);
    visit(next, {Step::Who::fate, static_cast<Byte>(node), static_cast<Byte>(mishap), 0});
  };
  if (agent.life == NodeLife::stopped) {
    State next = state;
    node_in(next, node).life = NodeLife::alive;
    visit(next, {Step::Who::fate, static_cast<Byte>(node), static_cast<Byte>(Mishap::agent_stops), 1});
    return;
  }
  meet(Mishap::agent_dies, [&](State& next) {
    end_agent(next, node, Reason::none);
    node_in(next, node).life = NodeLife::dead;
  });
  meet(Mishap::agent_stops, [&](State& next) { node_in(next, node).life = NodeLife::stopped; });
  meet(Mishap::link_fails, [&](State& next) {
    Node& cut = node_in(next, node);
    cut.is_cut = 1;
    to_agent(next, node) = to_master(next, node) = {};
  });
}

// ---- words ----------------------------------------------------------------------------------------------------------

std::string Protocol::describe(Step step) const {
  static constexpr std::array<const char*, 16> kKinds{
      "none", "open",      "devices",  "start",       "start_failed", "ready", "command", "spoil",
      "done", "rank_lost", "rank_end", "expect_ends", "end",          "ended", "fault",   "bye"};
  static constexpr std::array<const char*, 9> kMaster{"opens a session",
                                                      "starts it or gives up",
                                                      "is ready or gives up",
                                                      "publishes",
                                                      "collects, or sees a loss, in",
                                                      "knows how the lost rank has ended",
                                                      "knows that all have ended",
                                                      "ends the session",
                                                      "says farewell"};
  static constexpr std::array<const char*, 4> kWorker{"takes a command", "reads spoiled", "runs", "stores done"};
  static constexpr std::array<const char*, 6> kMishaps{"is killed",  "agent is killed",  "agent is stopped",
                                                       "link fails", "master is killed", "agent fails"};
  const std::string number = std::to_string(step.number);
  const std::string of_command = step.id == 0 ? "" : " " + std::to_string(step.id);
  switch (step.who) {
    case Step::Who::master: return "master: " + std::string(kMaster[step.what]) + of_command;
    case Step::Who::delivery_to_master: return "master <- node " + number + ": " + kKinds[step.what] + of_command;
    case Step::Who::delivery_to_agent: return "node " + number + " <- master: " + kKinds[step.what] + of_command;
    case Step::Who::agent: return "node " + number + " reports or ends: " + kKinds[step.what] + of_command;
    case Step::Who::rows: return "node " + number + ": rows arrive";
    case Step::Who::worker: return "rank " + number + " " + kWorker[step.what] + of_command;
    case Step::Who::watcher: return "rank " + number + " is seen to be lost";
    default: return "fate: " + number + " " + kMishaps[step.what] + (step.id == 0 ? "" : ": continues");
  }
}

}  // namespace model::nodes
