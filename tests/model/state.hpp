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
inline constexpr int kMostCommands = 7;  // with the moves of values; the last one is close
inline constexpr int kMostSlots = 7;     // of the pool of commands
inline constexpr int kMostPlaces = 3;    // of an inbox
inline constexpr int kMostValues = 2;
inline constexpr Byte kLeft = 255;  // a value of collective_step

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
  Byte scan;      // the rank, or the command, that a condition over all of them checks now
  Byte phase;     // the next load in the check of that rank
  Byte mask;      // the ranks that the check has found: a bit per rank
  Byte is_stale;  // the doorbell has rung since the process read Doorbell::rings
};

enum class Life : Byte { alive, hung, dead };

/// An entry of an inbox: the number of a command, and its slot.
struct Entry {
  Byte id;
  Byte slot;
};

/// A worker: the private state of its process, and its slot in the control block.
struct Worker {
  Process process;
  Life life;
  Byte id;        // Inbox::current_: the command that it executes, or the last one while it waits
  Byte slot;      // the slot of that command, while it executes it
  Byte received;  // Inbox::received_
  Byte step;      // Meetings::step_
  Byte begun;     // Meetings::begun_
  Byte last;      // Meetings::last_command_
  Byte readers;   // Meetings::readers_
  Byte known;     // the word that it has loaded first
  Byte seen;      // the word that it has loaded next
  Byte ahead;     // CudaPeers::copied_ahead_: the move whose copy it has started ahead, or 0
  Byte is_late;   // 1: it fails after its vote
  Byte
      skips;  // 1: it does not run the command, because one on which the command depends has failed; 2: it leaves the collectives before it waits for votes

  Byte done;
  std::array<Entry, kMostPlaces> inbox;
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
  Vote cast;
  Byte failed_at;  // position in the order of all failures; 0: the failure is not its own
  Byte steps;
};

/// A command in a slot of the pool. Its ranks are those of the call in the scenario.
struct Slot {
  Byte id;
  Byte failed;
  Byte spoiled;
  std::array<Byte, kMostWorkers> places;  // Command::places
};

/// The result of a call: one of these, or kFailed + the position of the reported failure in the order of all failures.
inline constexpr Byte kNoResult = 0;
inline constexpr Byte kOk = 1;
inline constexpr Byte kLost = 2;
inline constexpr Byte kFailed = 3;

template <class T>
using ByCommand = std::array<T, kMostCommands + 1>;
template <class T>
using ByRank = std::array<T, kMostWorkers>;

/// What a command does: the number of a call of the scenario, kClose, or kMove with the value, the rank that has it, and
/// the rank that gets a copy. One of these may be kHost.
inline constexpr Byte kClose = 127;
inline constexpr Byte kMove = 128;
inline constexpr Byte kHost = 3;
static_assert(kHost == kMostWorkers);

// The memory of a copy of a value. A write that has completed leaves the number of its command.
inline constexpr Byte kNoValues = 0;      // the memory was freed, was never written, or is being filled
inline constexpr Byte kFirstValues = 64;  // those that the program gave the value at the start
inline constexpr Byte kIsPartial = 128;   // a bit: the command is writing, or has failed before it was through
// States of SpareCopy. Otherwise, the state is the command from which on the copy is spare, and a role.
inline constexpr Byte kNeeded = 0;
inline constexpr Byte kDropped = 255;
inline constexpr Byte kIsSuccessor = 64;  // SpareCopy::Role
inline constexpr Byte kIsHome = 128;
constexpr bool is_spare(Byte word) noexcept { return word != kNeeded && word != kDropped; }
constexpr Byte spare_from(Byte word) noexcept { return word & (kIsSuccessor - 1); }
inline constexpr Byte kNowhere = 255;  // the home of a value that was lost, or was not made yet

/// The copy in the memory of the host.
struct HostCopy {
  Byte contents;
  Byte last;  // the last command that has begun to write it; not in the code
  Byte has_memory;
  Byte is_valid;
  Byte written;  // the command in flight that writes it last, or 0
  Byte by;       // the rank of the last command that writes it
  Byte readers;  // the moves in flight that read it, a bit per command
};

/// A value: the memory of its copies and SpareCopy, which are shared, and what the master knows of it (ValueState).
struct Value {
  ByRank<Byte> contents;
  ByRank<Byte> spare;
  ByRank<Byte> written;  // by rank: the command in flight that writes the copy last, or 0
  ByRank<Byte> brought;  // by rank: the move in flight that brings the copy, or 0
  ByRank<Byte> used;     // by rank: the last command that uses the copy
  ByRank<Byte> marked;   // by rank: the last mark of the copy as that of the home
  ByRank<Byte> readers;  // by rank: the moves in flight that read the copy, a bit per command
  Byte valid;            // a bit per rank
  Byte risky_moves;      // a bit per move in flight
  Byte home;
  Byte has_failed;  // 1: it was never made, or was lost
  HostCopy host;
};

struct State {
  std::array<Worker, kMostWorkers> workers;
  std::array<std::array<Outbox, kMostPlaces>, kMostWorkers> outboxes;  // by rank and place
  std::array<Slot, kMostSlots> pool;
  ByCommand<Byte> what;
  ByCommand<Byte> dependencies;  // a bit per earlier command: the command fails if that one fails
  ByCommand<Byte> waits;         // a bit per earlier command of another rank, which must be done before this one begins
  ByCommand<Byte> slot_of;       // where the master has put the command. Dependencies contain it too
  Byte lost;
  Byte is_lost;  // a bit per rank
  std::array<Byte, kBells> sleepers;

  Process master;
  Byte next;        // the number of the next command
  Byte calls;       // how many calls of the scenario the program has made
  Byte is_writing;  // 1: the master is writing a call that uses values
  Byte aside;       // 1 + the slot of the call that was put aside, or 0
  Byte cursor;      // the copy that the master claims or brings next, as a pair of value and rank
  Byte marking;     // values whose spare copies it marks, a bit per value; kHasSuccessor
  Byte marks;       // the copy of the first of these values that it marks next: 1 + the rank
  Byte checked;     // 1: the master has checked the shares for the next call, before a wait. Only a mistake sets it
  Byte awaited;     // the command that the master waits for or collects
  Byte collected;   // a bit per command
  ByCommand<Byte> inherited;  // InFlight::inherited: the result of the failed call on which this one depends, or 0
  Byte expects_ends;
  Byte shares;  // a bit per rank: it has its share of a shared variable. The master knows the same of it

  // What the properties check, by command.
  ByCommand<Byte> ran;     // ranks that ran it to its end
  ByCommand<Byte> failed;  // ranks with a failure of their own
  ByCommand<Byte> first_failed_at;
  ByCommand<Byte> committed;    // ranks that committed its updates
  ByCommand<Byte> failed_late;  // ranks that failed after their vote
  ByCommand<Byte> results;
  ByCommand<Byte> known;  // the failures that the program has seen before it makes the call: a bit per failure
  Byte failures;          // so far
  Byte drops;             // attempts of workers to free a copy, so far
  Byte deaths;
  Byte broken;  // 1 + index of the property that does not hold

  // Values come last, because few scenarios have them.
  std::array<Value, kMostValues> values;

  friend bool operator==(const State& a, const State& b) noexcept { return std::memcmp(&a, &b, sizeof(State)) == 0; }
};
static_assert(alignof(State) == 1, "no padding: states are compared byte by byte");

/// A call of the scenario. Sets of ranks have a bit per rank. Sets of calls have a bit per call, from bit 1 on.
struct Call {
  int operations = 0;       // collectives inside it
  bool has_outputs = true;  // it votes
  bool wants_vote = false;  // it also waits for the votes of its peers: it has updates to commit
  bool is_large = false;    // the workers reduce its outputs
  Byte ranks = 0;           // 0: all
  Byte after = 0;           // the calls that write what it uses. It depends on those that are in flight
  Byte reads = 0;           // values: a bit per value
  Byte writes = 0;
  Byte makes = 0;
  bool uses_shares = false;  // of a shared variable: each of its ranks must have its share
  Byte to_host = 0;          // this is no call: the program brings the values to the host
  bool only_brings = false;  // this is no call: the program brings the values that it reads to its rank
};

/// A deliberate mistake in the protocol, which the explorer must find.
enum class Mistake : Byte {
  none,
  sleeps_without_recheck,
  rings_before_done,
  done_before_outputs,
  vote_before_outbox,
  no_vote_after_skipping,
  commits_without_vote,
  loss_wakes_nobody,
  command_before_step_is_cleared,
  one_contribution,
  no_reclaim,
  ignores_dependencies,
  ignores_failed,
  ignores_spoiled,
  spoiled_before_failed,
  marks_no_dependents,
  marks_only_direct_dependents,
  fails_no_dependents,
  collects_before_dependencies,
  slot_is_free_when_one_rank_is_done,
  place_is_free_when_the_rank_is_done,
  writes_into_a_full_inbox,
  entries_before_places,
  rings_before_entries,
  depends_on_doomed_calls,
  leave_compares_slots,
  done_wakes_no_readers,
  behind_is_here,
  leaves_after_the_votes,
  late_failure_changes_the_vote,
  checks_before_the_wait,
  // Values.
  move_ignores_the_writer,
  move_survives_the_writer,
  write_ignores_readers,
  move_ignores_readers,
  write_leaves_copies_valid,
  write_forgets_the_source,
  moves_are_not_marked,
  failed_move_leaves_the_copy_valid,
  failed_maker_leaves_the_value,
  drop_ignores_the_claim,
  drops_what_is_in_use,
  claim_ignores_the_drop,
  home_needs_no_successor,
  successor_is_not_claimed,
  home_is_not_claimed,
  successor_has_not_arrived,
  marks_the_home_as_before,
  marks_what_is_pinned,
  marks_what_is_read,
  transfer_is_no_use,
  transfer_ignores_the_one_before,
  frees_host_memory_in_use,
  host_copy_has_not_arrived,
  waits_for_lost_ranks,
  lost_home_stays,
  new_home_is_not_claimed,
  no_slot_for_a_command_put_aside,
  brings_without_another_look,
  write_hides_a_failed_move,
  forgets_copies_before_moves,
  depends_on_doomed_writes,
  collects_what_was_given_up,
  // Copies that start ahead.
  ahead_ignores_earlier_commands,
  ahead_ignores_readers,
  ahead_ignores_failures,
  ahead_overwrites_arguments,
  ahead_counts_as_done,
  ahead_is_not_awaited,
  failure_forgets_ahead,
  destination_is_not_claimed,
};

struct Scenario {
  const char* name;
  int workers = 2;
  int places = 2;  // of each inbox
  std::vector<Call> calls;
  int failures = 0;               // of functions, at most
  int failing_call = 0;           // the call whose function may fail; 0: any call
  bool may_fail_late = false;     // a failure may also come after the vote, while outputs are reduced
  int deaths = 0;                 // of workers, at most
  Byte mortal_ranks = 0;          // the workers that may die; 0: all
  bool may_return_early = false;  // a function may return before it has called all collectives
  bool master_may_die = false;
  bool functions_may_hang = false;
  std::vector<int> values{};    // the rank that has each value at the start; -1 if a call makes the value
  Byte copies = 0;              // further ranks that have a copy of each value at the start
  int pinned = -1;              // the rank to which all values are pinned
  bool moves_may_fail = false;  // for lack of memory. Such a failure counts as one of a function
  bool copies_ahead = false;    // a rank may start the copy of its next move while it runs a call
  int drops = 0;                // attempts of workers to free a copy, at most
  bool respawns = false;        // lost workers are replaced
  Mistake mistake = Mistake::none;
};

}  // namespace model
