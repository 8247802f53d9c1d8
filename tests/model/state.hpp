#pragma once

// The state of the model: the contents of the control block, the position of each process in its code, and the facts
// that the properties check. A state is small and plain, because the explorer stores millions of states.

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace model {

using Byte = std::uint8_t;

inline constexpr int kMostWorkers = 3;
inline constexpr int kMostCommands = 5;  // the last one is close
inline constexpr int kMostSlots = 3;     // calls in flight, at most
inline constexpr Byte kLeft = 255;       // a value of collective_step

enum class Bell : Byte { to_workers, to_master, to_peers };
inline constexpr int kBells = 3;

/// The position of a process in a wait or a ring (common/os/wait.hpp). A process that does neither is at `look`.
enum class Sub : Byte {
  look,
  interrupted,
  look_once_more,
  see_rings,
  count_in,
  recheck,
  recheck_interrupted,
  futex_wait,
  asleep,
  count_out,
  look_after,
  bump_rings,
  futex_wake,
};

/// The private state that every process which waits has.
struct Process {
  Byte pc;
  Sub sub;
  Byte scan;      // the rank that a condition over all ranks checks now
  Byte phase;     // the next load in the check of that rank
  Byte mask;      // the ranks that the check has found: a bit per rank
  Byte is_stale;  // the doorbell has rung since the process read Doorbell::rings
};

enum class Life : Byte { alive, hung, dead };

/// A worker: the private state of its process, and its slot in the control block.
struct Worker {
  Process process;
  Life life;
  Byte id;       // the command that it executes or waits for
  Byte step;     // Meetings::step_
  Byte begun;    // the command that Meetings::begin was last called for
  Byte last;     // Meetings::last_command_
  Byte known;    // the word that it has loaded first
  Byte seen;     // the word that it has loaded next
  Byte is_own;   // 1: the failure that it reports is its own
  Byte is_late;  // 1: it fails after its vote

  Byte done;
  Byte vote;
  Byte collective_command;
  Byte collective_step;
  std::array<Byte, 2> contributions;  // 16 * command + operation + 1, as the rank wrote it

  Byte watcher;  // the next step of the master's watcher of this worker
};

enum class Vote : Byte { none, ok, failed };

struct Outbox {
  Byte command;  // the command for which it was last written; not in the code
  Vote vote;
  Byte failed_at;  // position in the order of all failures; 0: the failure is not its own
  Byte steps;
};

struct Slot {
  Byte id;
  Byte failed;
};

enum class Result : Byte { none, ok, failed, lost };

struct State {
  std::array<Worker, kMostWorkers> workers;
  std::array<std::array<Outbox, kMostWorkers>, kMostSlots> outboxes;
  std::array<Slot, kMostSlots> ring;
  Byte published;
  Byte lost;
  Byte failed_call;
  Byte acknowledged;
  std::array<Byte, kBells> sleepers;

  Process master;
  Byte next;
  Byte drained;
  Byte expects_ends;

  // What the properties check, by command.
  std::array<Byte, kMostCommands + 1> ran;     // ranks that ran it to its end
  std::array<Byte, kMostCommands + 1> failed;  // ranks with a failure of their own
  std::array<Byte, kMostCommands + 1> first_failed_at;
  std::array<Byte, kMostCommands + 1> committed;  // ranks that committed its updates
  std::array<Result, kMostCommands + 1> results;
  Byte failures;  // so far
  Byte deaths;
  Byte broken;  // 1 + index of the property that does not hold

  friend bool operator==(const State& a, const State& b) noexcept { return std::memcmp(&a, &b, sizeof(State)) == 0; }
};
static_assert(alignof(State) == 1, "no padding: states are compared byte by byte");

/// A call of the scenario.
struct Call {
  int operations = 0;       // collectives inside it
  bool has_outputs = true;  // it votes
  bool wants_vote = false;  // it also waits for the votes of its peers: it has updates to commit
  bool is_large = false;    // the workers reduce its outputs
  int target = -1;
};

/// A deliberate mistake in the protocol, which the explorer must find.
enum class Mistake : Byte {
  none,
  sleeps_without_recheck,
  rings_before_done,
  done_before_outputs,
  vote_before_outbox,
  no_vote_after_shared_failure,
  commits_without_vote,
  acknowledges_late,
  reuses_a_full_ring,
  reuses_what_not_all_have_passed,
  loss_wakes_nobody,
  command_before_step_is_cleared,
  one_contribution,
  no_reclaim,
  forgets_a_failed_call,
};

struct Scenario {
  const char* name;
  int workers = 2;
  int slots = 2;  // commands in the ring
  std::vector<Call> calls;
  int failures = 0;            // of functions, at most
  int failing_call = 0;        // the call whose function may fail; 0: any call
  bool may_fail_late = false;  // a failure may also come after the vote, while outputs are reduced
  int deaths = 0;              // of workers, at most
  bool master_may_die = false;
  bool functions_may_hang = false;
  Mistake mistake = Mistake::none;
};

}  // namespace model
