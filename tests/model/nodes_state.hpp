#pragma once

// The state of the model of a session on several nodes: the control block of each node, the messages under way, what
// the master and the agents know, and the facts that the properties check. Node 0 is the master's.

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/model/state.hpp"

namespace model::nodes {

inline constexpr int kMostNodes = 3;
inline constexpr int kMostRanks = 4;
inline constexpr int kMostCommands = 5;  // the last one is close
inline constexpr int kMostSlots = 5;
inline constexpr int kMostPlaces = 2;
inline constexpr int kMostMessages = 7;  // under way from one node to another

constexpr Byte bit(int number) noexcept { return static_cast<Byte>(1U << static_cast<unsigned>(number)); }

/// The messages of master/nodes/messages.hpp that change the state.
enum class Kind : Byte {
  none,
  open,
  devices,
  start,
  start_failed,
  ready,  // rank_state
  command,
  spoil,
  done,
  rank_lost,
  rank_end,
  expect_ends,
  end,
  ended,
  fault,
  bye,
};

/// What a rank reports about a command.
struct Outcome {
  Byte command;  // for which it was written; 0: its outputs were freed
  Vote vote;
  Byte is_own;  // 1: the failure is its own
};

struct Message {
  Kind kind = Kind::none;
  Byte session = 0;  // of the sender; only `devices` and `start_failed` have it in the code
  Byte rank = 0;
  Byte id = 0;
  Byte slot = 0;
  Byte has_rows = 0;  // rows travel beside the message
  Byte changes = 0;   // of the heap: a bit per command that made them
  Outcome report{};
  std::array<Byte, 2> consumed{};  // by local rank
};

/// Messages from one node to another, in order.
struct Channel {
  Byte count;
  std::array<Message, kMostMessages> messages;
};

/// How a worker has ended.
enum class End : Byte { none, at_close, after_a_loss, killed };

struct Rank {
  // The worker, and its slot in the control block of its node.
  Life life = Life::alive;
  End end = End::none;
  Byte pc = 0;
  Byte id = 0;
  Byte slot = 0;
  Byte received = 0;
  Byte skips = 0;
  Byte done = 0;
  Byte consumed = 0;
  Byte outputs = 0;  // in its arena: a bit per command
  std::array<Entry, kMostPlaces> inbox{};
  std::array<Outcome, kMostPlaces> outboxes{};
  Byte is_lost = 0;
  // What the agent knows of it.
  Byte given = 0;  // Agent::given_: a bit per command that it has not reported
  Byte has_told_loss = 0;
  Byte has_told_end = 0;
  // Its slot in the control block of the master, if it is on another node.
  Byte seen_done = 0;
  std::array<Outcome, kMostPlaces> seen{};
  Byte seen_consumed = 0;
  Byte seen_lost = 0;  // 1: the agent has said so
  End seen_end = End::none;
};

enum class NodeLife : Byte { alive, stopped, dead, over };

/// Why a process has ended, or a session.
enum class Reason : Byte { none, well, rank_lost, node_silent, node_fault, refused, master_silent };

struct Slot {
  Byte id;
  Byte failed;
  Byte spoiled;
};

struct Node {
  NodeLife life;
  Reason reason;  // that the agent has given at its end
  Byte session;   // that it runs; 0: none
  Byte expects_ends;
  Byte first_lost;               // ControlHeader::lost
  std::array<Entry, 3> waiting;  // commands whose rows are under way, and those after them
  Byte rows;                     // 1: the rows have arrived
  Byte changes;                  // of the heap that it has repeated
  Byte spoiled;                  // the commands of which it has heard that they must fail; not in the code
  Byte is_cut;                   // nothing passes between this node and the master any more
  std::array<Slot, kMostSlots> slots;
  // What the master knows of it.
  Byte told;         // RemoteNodes::Node::told
  Byte has_rows;     // RowMirror: the rows were sent
  Byte answer;       // 1: it has named its devices. Later, how many of its workers are ready
  Byte has_refused;  // start_failed
  Byte is_lost;
  Byte has_ended;
};

template <class T>
using ByCommand = std::array<T, kMostCommands + 1>;

struct Master {
  Byte pc = 0;
  Reason reason = Reason::none;  // why the session, or the program, has ended
  Byte session = 0;
  Byte next = 0;  // the number of the next command
  Byte awaited = 0;
  Byte collected = 0;     // a bit per command
  Byte lost = 0;          // ControlHeader::lost
  Byte fault = 0;         // NodesPool::fault_: the node
  Byte first_change = 0;  // HeapLog: the first change that is still in the log
  Byte late_spoils = 0;   // only with a mistake
  ByCommand<Byte> results{};
  ByCommand<Byte> inherited{};
  ByCommand<Byte> dependencies{};
  ByCommand<Byte> slot_of{};
};

struct State {
  std::array<Rank, kMostRanks> ranks;
  std::array<Node, kMostNodes> nodes;
  // By node, without the master's own.
  std::array<Channel, kMostNodes - 1> to_agents;
  std::array<Channel, kMostNodes - 1> to_masters;
  Master master;
  // What the properties check, by command: a bit per rank.
  ByCommand<Byte> ran;
  ByCommand<Byte> failed;
  Byte failures;
  Byte mishaps;
  Byte refusals;
  Byte broken;

  friend bool operator==(const State& a, const State& b) noexcept { return std::memcmp(&a, &b, sizeof(State)) == 0; }
};
static_assert(alignof(State) == 1, "no padding: states are compared byte by byte");

struct Call {
  Byte ranks = 0;             // a bit per rank; 0: all
  Byte after = 0;             // the calls that write what it uses: a bit per call, from bit 1 on
  bool reads_rows = false;    // of a data set that the node gets once
  bool writes_outbox = true;  // the unmapping of a file does not
};

/// What may happen to a process or a link. Sets have a bit each.
enum class Mishap : Byte { worker_dies, agent_dies, agent_stops, link_fails, master_dies, agent_fails };
constexpr Byte only(Mishap mishap) noexcept { return bit(static_cast<int>(mishap)); }

/// A deliberate mistake, which the explorer must find.
enum class Mistake : Byte {
  none,
  reports_what_was_only_taken,
  done_before_the_report,
  frees_outputs_at_done,
  credit_returns_at_done,
  credit_per_node,
  slot_is_free_when_one_node_is_done,
  stale_vote_is_reported,
  begins_out_of_order,
  begins_before_rows,
  changes_are_forgotten_early,
  spoil_is_ignored_once_begun,
  spoil_after_the_next_command,
  sends_no_spoil,
  collects_before_dependencies,
  loss_overtakes_done,
  ended_rank_is_not_lost,
  peer_of_the_lost_rank_is_named,
  loss_before_fault,
  awaits_the_end_on_a_lost_node,
  awaits_a_lost_node,
  agent_ignores_silence,
  fault_is_not_sent,
  no_farewell_after_a_failure,
  closes_before_results,
  close_before_expect_ends,
  answers_have_no_number,
};

struct Scenario {
  const char* name;
  std::vector<Byte> node_of;  // by rank
  std::vector<Call> calls;
  int places = 1;    // of each inbox
  int failures = 0;  // of functions, at most
  int mishaps = 0;   // at most
  Byte kinds = 0;    // of mishaps
  int sessions = 0;  // that the program tries, one after the other; 0: one that has started already
  int refusals = 0;  // how often an agent may refuse to name its devices, or to start, at most
  Mistake mistake = Mistake::none;
};

}  // namespace model::nodes
