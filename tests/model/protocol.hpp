#pragma once

// The call protocol, one atomic step at a time. A step is one access to shared memory, as the code does it, together
// with what the process does in its own memory before the next access. README.md names the code of every step.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tests/model/state.hpp"
#include "tests/model/visit.hpp"

namespace model {

/// The process that takes a step, and its position in its code.
struct Step {
  enum class Who : Byte { master, worker, watcher, fate } who;
  Byte rank;  // of the master: the command that it awaits, or publishes
  Byte pc;
  Sub sub;
};

enum class Property : Byte {
  slot_is_not_reused,
  place_is_not_reused,
  outbox_is_of_this_command,
  contribution_is_of_this_operation,
  nobody_is_blamed_for_leaving,
  failure_iff_one_failed,
  no_known_failure,
  success_means_all_ran,
  first_failure_is_reported,
  all_commit_or_none,
  commit_as_reported,
  loss_is_reported,
  copy_is_as_written,
  copy_is_not_overwritten,
  value_is_not_given_up,
  loss_is_exact,
  home_is_valid,
  there_is_a_slot,
  last_copy_is_not_dropped,
  pinned_copy_is_not_dropped,
  host_copy_is_not_overwritten,
  host_memory_is_not_freed,
  filled_copy_is_not_freed,
  call_has_its_shares,
};
inline constexpr std::array<std::string_view, 24> kProperties{
    "a slot is written while a worker still reads it",
    "a place of an inbox is written while a worker still reads it or its outbox",
    "an outbox is read that is not of this command",
    "a contribution is read that is not of this operation",
    "a rank is blamed for leaving a collective that all ranks call",
    "a call fails though neither it nor a call on which it depends failed, or succeeds though one did",
    "a call fails because of a failure that the program had seen before it made the call",
    "a call succeeds that not every rank ran",
    "another failure than the first is reported",
    "some ranks committed, and others did not",
    "a call that failed was committed, or one that succeeded was not",
    "the master ends calls as lost though no worker was",
    "a copy is read that is not what the last writer wrote",
    "a copy is overwritten or freed while another rank reads it",
    "a value is given up though a survivor has it",
    "a call is lost though no lost worker was needed for it",
    "the home of a value is a rank without a valid copy",
    "there is no free slot for a command",
    "the last copy of a value is dropped",
    "a pinned copy is dropped",
    "the host copy is overwritten by an older one, or while it is read",
    "the memory of the host copy is freed while a command uses it",
    "a copy is freed while a copy that was started ahead fills it",
    "a call runs on a rank that has lost its share of a variable",
};

using Visit = BasicVisit<State, Step>;

class Protocol {
 public:
  using State = model::State;
  using Step = model::Step;
  using Scenario = model::Scenario;
  static constexpr std::size_t kPartBytes = sizeof(Worker);  // so the first parts of a state are the workers

  explicit Protocol(const Scenario& scenario) : scenario_(scenario) {}

  State initial() const;
  void for_each_step(const State& state, const Visit& visit) const;
  /// True if the master has finished or is dead, and every worker has ended.
  bool is_proper_end(const State& state) const noexcept;
  std::string describe(Step step) const;
  static std::string_view describe_broken(const State& state) noexcept { return kProperties[state.broken - 1U]; }

 private:
  enum class Outcome : Byte { goes_on, ready, interrupted };
  enum class Answer : Byte { looking, yes, no };
  enum class Presence : Byte { looking, behind, here, elsewhere };

  struct Move {
    Byte value, from, to;
  };

  int workers() const noexcept { return scenario_.workers; }
  bool is(Mistake mistake) const noexcept { return scenario_.mistake == mistake; }
  Byte all_ranks() const noexcept { return static_cast<Byte>((1U << static_cast<unsigned>(workers())) - 1); }
  Byte calls_count() const noexcept { return static_cast<Byte>(scenario_.calls.size()); }
  static bool is_close(const State& state, Byte id) noexcept { return state.what[id] == kClose; }
  static bool is_move(const State& state, Byte id) noexcept { return (state.what[id] & kMove) != 0; }
  static Move move_of(const State& state, Byte id) noexcept;
  /// The call that the command runs. A move, and close, are like a call that does nothing.
  const Call& call(const State& state, Byte id) const noexcept;
  const Call& next_call(const State& state) const noexcept { return scenario_.calls[state.calls]; }
  Byte ranks_of(const Call& call) const noexcept { return call.ranks == 0 ? all_ranks() : call.ranks; }
  Byte ranks_of(const State& state, Byte id) const noexcept;
  bool has_rank(const State& state, Byte id, int rank) const noexcept;
  /// The only rank of a command.
  Byte rank_of(const State& state, Byte id) const noexcept;
  /// True if the command has collectives in which several ranks meet.
  bool has_met(const State& state, Byte id) const noexcept;
  /// The place of the command in the inbox of one of its ranks. The command need not be published yet.
  Byte place_of(const State& state, Byte id, int rank) const noexcept;
  /// The outbox of the rank for the command in the slot, as Command::places says.
  static Outbox& outbox_of(State& state, Byte slot, int rank) noexcept;

  // Doorbells and fate (protocol.cpp).
  template <class Ready, class Interrupted>
  Outcome wait(State& state, Process& process, Bell bell, Ready ready, Interrupted interrupted) const;
  bool ring(State& state, Process& process, Bell bell) const;
  bool wake(State& state, Process& process, Bell bell) const;
  template <class Visitor>
  void for_each_process(State& state, Bell bell, Visitor visitor) const;
  void step_watcher(State& state, int rank, const Visit& visit) const;

  // The master (master.cpp).
  static bool is_in_flight(const State& state, Byte id) noexcept;
  bool is_free(const State& state, Byte slot) const noexcept;
  bool have_done(const State& state, Byte id, Byte ranks) const noexcept;
  bool has_place(const State& state, Byte ranks) const noexcept;
  Byte blocker(const State& state, Byte ranks) const noexcept;
  static Byte first_to_collect(const State& state, Byte id) noexcept;
  Byte next_to_mark(const State& state, Byte failed) const noexcept;
  void step_master(const State& state, const Visit& visit) const;
  void decide_next(const State& state, const Visit& visit) const;
  bool has_shares(const State& state, const Call& call) const noexcept;
  void take_master_step(State& state) const;
  void publish_next(State& state, Byte what) const;
  void fill_slot(State& state) const;
  Byte take_slot(State& state) const;
  void write_places(State& state) const;
  void write_entry(State& state) const;
  void find_dependencies(State& state) const;
  void end_publishing(State& state) const;
  void await(const State& state, Step step, const Visit& visit) const;
  void end_with_loss(State& state) const;
  void collect(State& state) const;
  void find_result(State& state, Byte id) const;
  void mark(State& state, Byte id, Byte failed) const;
  void release(State& state) const;
  void forget(State& state, Byte id) const;
  void go_on(State& state) const;

  // What the master knows of values (value_copies.cpp).
  static Byte values_of(const Call& call) noexcept { return call.reads | call.writes | call.makes | call.to_host; }
  bool uses_copy(const Call& call, Byte copy) const noexcept;
  template <class Matches>
  Byte find_copy(Byte from, Matches matches) const;
  void begin_call_with_values(State& state) const;
  void claim_copies_from(State& state, Byte from) const;
  void claim_copy(State& state) const;
  void bring_copies(State& state) const;
  void end_bringing(State& state, Byte values) const;
  void bring_copy(State& state) const;
  bool has_home(State& state, Byte index) const;
  void claim_next_home(State& state, Byte index) const;
  bool claim(State& state, Byte index, Byte rank) const;
  Move next_move(const State& state) const noexcept;
  bool must_refuse(const State& state) const noexcept;
  void refuse_call(State& state) const;
  void check_refused(State& state) const;
  void depend_on_writer(State& state, Byte writer) const;
  void find_dependencies_of_move(State& state) const;
  void find_dependencies_on_values(State& state) const;
  void note_move(State& state, Byte id) const;
  void note_use(State& state, Byte id) const;
  void keep_sources(State& state, Byte index, Byte rank) const;
  void go_back_to_source(State& state, Byte id) const;
  Byte last_writer(const State& state, Byte id, Byte index, Byte place) const;
  void free_host_copy(State& state, Byte index) const;
  void note_arrival(State& state, Byte id) const;
  static bool has_arrived(const State& state, const Value& value, Byte rank) noexcept;
  void begin_marking(State& state, Byte values) const;
  std::optional<Byte> next_mark(const State& state, Byte index) const;
  bool has_more_to_mark(State& state) const;
  void take_mark(State& state) const;
  void mark_copy(State& state) const;
  void mark_at_once(State& state, Byte index) const;
  bool had_copy_at_start(Byte index, Byte rank) const noexcept;
  void note_unfinished(State& state, Byte id) const;

  // Lost workers are replaced (recovery.cpp).
  void await_survivors(const State& state, Step step, const Visit& visit) const;
  void recover(State& state) const;
  bool was_given_up(State& state, Byte id) const;
  Byte first_whole_call(State& state) const;
  Byte take_unfinished(State& state) const;
  void forget_copy(State& state, Byte index, int rank) const;
  void start_worker(State& state, int rank) const;

  // What the master reports (results.cpp).
  void check_result(State& state, Byte id, Byte result) const;
  void check_commits(State& state, Byte id, bool is_ok) const;
  bool includes_dependencies(const State& state, Byte id) const noexcept;

  // A worker (worker.cpp).
  void step_worker(const State& state, int rank, const Visit& visit) const;
  void run_function(const State& state, int rank, const Visit& visit) const;
  bool may_fail(const State& state, Byte id) const noexcept;
  void take_step(State& state, int rank) const;
  void settle(State& state, int rank) const;
  bool is_unseen(const Worker& worker) const noexcept;
  void await_command(State& state, int rank) const;
  void begin_command(State& state, int rank) const;
  void begin_dependencies(State& state, int rank) const;
  void check_dependencies(State& state, int rank) const;
  void skip(State& state, int rank) const;
  void enter_body(State& state, int rank) const;
  void vote(State& state, int rank) const;
  void after_vote(State& state, int rank) const;
  void fail(State& state, int rank, bool is_own) const;
  void report_failure(State& state, int rank) const;
  void leave_or_finish(State& state, int rank) const;
  void finish(State& state, int rank) const;

  // Copies of values on the workers (copies.cpp).
  void look_for_lost_ranks(State& state, int rank) const;
  void begin_waits(State& state, int rank) const;
  void await_earlier(State& state, int rank) const;
  void begin_writing(State& state, int rank) const;
  void end_function(State& state, int rank) const;
  void run_move(const State& state, int rank, const Visit& visit) const;
  void begin_copy(State& state, int rank, Byte id) const;
  void end_move(State& state, int rank) const;
  void run_transfer(State& state, int rank) const;
  void start_ahead(const State& state, int rank, const Visit& visit) const;
  bool may_start_ahead(const State& state, int rank, Entry entry) const noexcept;
  void abandon_ahead(Worker& worker) const noexcept;
  static Byte copied_by(const Worker& worker) noexcept;
  void try_to_drop(const State& state, int rank, const Visit& visit) const;
  void appoint(State& state, int rank) const;
  void end_drop(State& state, int rank) const;
  void drop(State& state, int rank) const;
  bool is_read_by_a_move(const State& state, Byte value, int rank) const noexcept;
  bool is_host_copy_in_use(const State& state, Byte value) const noexcept;
  void check_drop(State& state, Byte index, int rank) const;
  bool is_as_written(const State& state, Byte id, Byte value, Byte contents) const noexcept;

  // Workers that wait for each other (meetings.cpp).
  void wait_for_peers(State& state, int rank) const;
  void meet(State& state, int rank) const;
  void look_for_absent(State& state, int rank) const;
  bool is_given_up(const State& state, const Worker& worker) const noexcept;
  Presence presence_of_next(const State& state, Worker& worker) const;
  Answer nobody_is_behind(const State& state, Worker& worker, int rank) const;
  Answer votes(State& state, Worker& worker) const;
  Answer peers_are_done(const State& state, Worker& worker, int rank) const;
  Answer next_rank(Process& process, Byte ranks) const noexcept;

  Scenario scenario_;
};

}  // namespace model
