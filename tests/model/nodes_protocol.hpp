#pragma once

// A session on several nodes, one step at a time. A step handles one message, or is one access to memory that processes
// of a node share. README.md names the code of every step.

#include <array>
#include <string>
#include <string_view>

#include "tests/model/nodes_state.hpp"
#include "tests/model/visit.hpp"

namespace model::nodes {

enum WorkerPc : Byte { await_command, read_spoiled, run, store_done };

enum MasterPc : Byte {
  open_session,
  await_devices,
  await_ready,
  decide,
  await_call,
  await_end_of_lost,
  await_ends,
  await_ended,
  leave,
  over,
  dead,
};

struct Step {
  enum class Who : Byte { master, delivery_to_master, agent, delivery_to_agent, rows, worker, watcher, fate } who;
  Byte number;  // of the node or the rank
  Byte what;    // the position, the kind of the message, or the mishap
  Byte id;
};

enum class Property : Byte {
  slot_is_not_reused,
  place_is_not_reused,
  outbox_is_of_this_command,
  report_is_of_this_command,
  failure_iff_one_failed,
  failure_is_named,
  success_means_all_ran,
  runs_in_order,
  heap_is_as_the_masters,
  rows_are_there,
  spoiled_is_not_run,
  failed_dependency_is_not_run,
  every_call_has_a_result,
  loss_comes_last,
  first_loss_is_named,
  fault_is_named,
  end_was_expected,
  verdict_is_passed_on,
  old_session_is_over,
  message_is_expected,
};
inline constexpr std::array<std::string_view, 20> kProperties{
    "a slot is written while a worker of the node still needs it",
    "a place is written while a worker or the master still needs it",
    "the master reads an outbox that is not of this command",
    "the agent reports an outbox that is not of this command, or outputs that were freed",
    "a call fails though neither it nor a call on which it depends failed, or succeeds though one did",
    "a call has failed, but no rank has reported a failure of its own",
    "a call succeeds that not every rank ran",
    "a rank does not run its commands in their order",
    "a worker begins a command before its node has all changes of the heap",
    "a worker begins a command before its rows are there",
    "a worker runs a command though its node knows that the command must fail",
    "a rank runs a command though it failed in one on which that depends",
    "a session is closed though a call has no result",
    "the master ends the session before it knows what the lost rank had finished",
    "the rank that is named was not the first one that was lost",
    "a node that said what is wrong with it, or is lost, is not named",
    "a worker that ended as it should is called lost",
    "a node does not hear why the job ends",
    "a message of an earlier session changes something",
    "a message comes that cannot be handled",
};

class Protocol {
 public:
  using State = nodes::State;
  using Step = nodes::Step;
  using Scenario = nodes::Scenario;
  using Visit = BasicVisit<State, Step>;
  static constexpr std::size_t kPartBytes = 36;  // about a rank, and less than half of a channel

  explicit Protocol(const Scenario& scenario);

  State initial() const;
  void for_each_step(const State& state, const Visit& visit) const;
  /// True if every process has ended.
  bool is_proper_end(const State& state) const noexcept;
  std::string describe(Step step) const;
  static std::string_view describe_broken(const State& state) noexcept { return kProperties[state.broken - 1U]; }

 private:
  bool is(Mistake mistake) const noexcept { return scenario_.mistake == mistake; }
  int ranks() const noexcept { return static_cast<int>(scenario_.node_of.size()); }
  int nodes() const noexcept { return nodes_; }
  int node_of(int rank) const noexcept { return scenario_.node_of[static_cast<std::size_t>(rank)]; }
  int local_rank(int rank) const noexcept;
  Byte ranks_on(int node) const noexcept { return ranks_on_[static_cast<std::size_t>(node)]; }
  Byte calls_count() const noexcept { return static_cast<Byte>(scenario_.calls.size()); }
  /// Command number `id` runs call `id`. The one after the last call is close.
  bool is_close(Byte id) const noexcept { return id > calls_count(); }
  const Call& call(Byte id) const noexcept;
  Byte ranks_of(Byte id) const noexcept { return call(id).ranks == 0 ? all_ranks_ : call(id).ranks; }
  bool has_rank(Byte id, int rank) const noexcept { return (ranks_of(id) & bit(rank)) != 0; }
  Byte place_of(Byte id, int rank) const noexcept;
  template <class Visitor>
  void for_each_rank_of(Byte id, int node, Visitor visitor) const;

  // Fates and losses (nodes_protocol.cpp).
  void start_workers(State& state, int node) const;
  void kill_workers(State& state, int node) const;
  void end_workers(State& state, int node) const;
  void end_agent(State& state, int node, Reason reason) const;
  void end_master(State& state, Byte pc) const;
  void forget_session(State& state) const;
  void step_watcher(const State& state, int rank, const Visit& visit) const;
  void step_fate(const State& state, const Visit& visit) const;
  void step_fate_of_node(const State& state, int node, const Visit& visit) const;
  bool may_happen(const State& state, Mishap mishap) const noexcept;

  // The master (nodes_master.cpp).
  bool is_in_flight(const State& state, Byte id) const noexcept;
  Byte done_of(const State& state, int rank) const noexcept;
  bool is_complete(const State& state, Byte id) const noexcept;
  bool is_free(const State& state, Byte slot) const noexcept;
  bool is_independent(const State& state, Byte id) const noexcept;
  bool has_place(const State& state, Byte id) const noexcept;
  bool has_place_on(const State& state, Byte id, int rank) const noexcept;
  void step_master(const State& state, const Visit& visit) const;
  void decide_next(const State& state, const Visit& visit) const;
  void await(State& state) const;
  bool can_go_on(const State& state) const noexcept;
  void go_on(State& state) const;
  void publish(State& state) const;
  Byte take_slot(const State& state) const noexcept;
  void find_dependencies(State& state, Byte id) const;
  void collect(State& state, Byte id) const;
  void find_result(State& state, Byte id) const;
  void mark_dependents(State& state, Byte id) const;
  void send_spoils(State& state) const;
  void release(State& state, Byte id) const;

  // How sessions begin and end (nodes_sessions.cpp).
  void send_to_agent(State& state, int node, Message message) const;
  void send_to_agents(State& state, Message message) const;
  void open(State& state) const;
  void start(State& state) const;
  void end_session(State& state, Reason reason) const;
  void end_with_loss(State& state) const;
  void close(State& state) const;
  void await_all_ends(State& state) const;
  void go_to_next_session(State& state) const;
  void say_farewell(State& state) const;
  bool have_all_nodes(const State& state, Byte Node::*fact) const noexcept;
  bool have_all_answered(const State& state) const noexcept;

  // What the master does with messages (nodes_remote.cpp).
  void send_command(State& state, int node, Byte id) const;
  void send_to_master(State& state, int node, Message message) const;
  bool listens(const State& state) const noexcept;
  bool is_silent(const State& state, int node) const noexcept;
  void step_messages(const State& state, int node, const Visit& visit) const;
  void take_message(State& state, int node) const;
  void take_answer(State& state, int node, const Message& message) const;
  void take_of_session(State& state, int node, const Message& message) const;
  void take_done(State& state, const Message& message) const;
  void note_loss(State& state, int rank) const;
  void note_fault(State& state, int node) const;
  void lose(State& state, int node) const;

  // An agent (nodes_agent.cpp).
  void step_agent(const State& state, int node, const Visit& visit) const;
  void step_deliveries(const State& state, int node, const Visit& visit) const;
  void handle(State& state, int node) const;
  void handle_of_session(State& state, int node, const Message& message) const;
  void refuse(State& state, int node) const;
  void fail(State& state, int node) const;
  void take_command(State& state, int node, const Message& message) const;
  void begin(State& state, int node, Entry command) const;
  bool has_rows_for(const State& state, int node, Byte id) const noexcept;
  void step_reports(const State& state, int rank, const Visit& visit) const;
  Byte next_report(const State& state, int rank) const noexcept;
  void report_done(State& state, int rank) const;
  void report_loss(State& state, int rank) const;
  bool may_report_loss(const State& state, int rank) const noexcept;
  bool is_master_silent(const State& state, int node) const noexcept;

  // A worker (nodes_worker.cpp).
  void step_worker(const State& state, int rank, const Visit& visit) const;
  void begin_command(State& state, int rank) const;
  void await(const State& state, int rank, const Visit& visit) const;
  void check_spoiled(State& state, int rank) const;
  void finish(State& state, int rank) const;
  void run_command(const State& state, int rank, Step step, const Visit& visit) const;
  void write_outbox(State& state, int rank, Outcome report) const;
  void check_order(State& state, int rank) const;
  void check_that_it_may_run(State& state, int rank) const;

  Scenario scenario_;
  int nodes_ = 1;
  Byte all_ranks_ = 0;
  std::array<Byte, kMostNodes> ranks_on_{};
};

inline void expect(State& state, bool holds, Property property) noexcept {
  if (!holds && state.broken == 0) state.broken = static_cast<Byte>(static_cast<Byte>(property) + 1);
}

inline Node& node_in(State& state, int node) noexcept { return state.nodes[static_cast<std::size_t>(node)]; }
inline const Node& node_in(const State& state, int node) noexcept {
  return state.nodes[static_cast<std::size_t>(node)];
}
inline Rank& rank_in(State& state, int rank) noexcept { return state.ranks[static_cast<std::size_t>(rank)]; }
inline const Rank& rank_in(const State& state, int rank) noexcept {
  return state.ranks[static_cast<std::size_t>(rank)];
}

inline Channel& to_agent(State& state, int node) noexcept {
  return state.to_agents[static_cast<std::size_t>(node - 1)];
}
inline const Channel& to_agent(const State& state, int node) noexcept {
  return state.to_agents[static_cast<std::size_t>(node - 1)];
}
inline Channel& to_master(State& state, int node) noexcept {
  return state.to_masters[static_cast<std::size_t>(node - 1)];
}
inline const Channel& to_master(const State& state, int node) noexcept {
  return state.to_masters[static_cast<std::size_t>(node - 1)];
}

inline void push(State& state, Channel& channel, const Message& message) noexcept {
  expect(state, channel.count < kMostMessages, Property::message_is_expected);
  if (channel.count < kMostMessages) channel.messages[channel.count++] = message;
}
inline Message pop(Channel& channel) noexcept {
  const Message first = channel.messages.front();
  for (std::size_t i = 1; i < channel.messages.size(); ++i) channel.messages[i - 1] = channel.messages[i];
  channel.messages.back() = {};
  --channel.count;
  return first;
}

template <class Visitor>
void Protocol::for_each_rank_of(Byte id, int node, Visitor visitor) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of(rank) == node && has_rank(id, rank)) visitor(rank);
  }
}

}  // namespace model::nodes
