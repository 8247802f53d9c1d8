#pragma once

// The call protocol, one atomic step at a time. A step is one access to shared memory, as the code does it, together
// with what the process does in its own memory before the next access. docs/protocol.md names the code of every step.

#include <array>
#include <functional>
#include <string>
#include <string_view>

#include "tests/model/state.hpp"

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
};
inline constexpr std::array<std::string_view, 12> kProperties{
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
};

class Protocol {
 public:
  explicit Protocol(const Scenario& scenario) : scenario_(scenario) {}

  State initial() const;
  using Visit = std::function<void(const State& next, Step step)>;
  void for_each_step(const State& state, const Visit& visit) const;
  /// True if the master has finished or is dead, and every worker has ended.
  bool is_proper_end(const State& state) const noexcept;
  std::string describe(Step step) const;

 private:
  enum class Outcome : Byte { goes_on, ready, interrupted };
  enum class Answer : Byte { looking, yes, no };
  enum class Presence : Byte { looking, behind, here, elsewhere };

  int workers() const noexcept { return scenario_.workers; }
  Byte close_id() const noexcept { return static_cast<Byte>(scenario_.calls.size() + 1); }
  const Call& call(Byte id) const noexcept { return scenario_.calls[id - 1U]; }
  bool is(Mistake mistake) const noexcept { return scenario_.mistake == mistake; }
  Byte all_ranks() const noexcept { return static_cast<Byte>((1U << static_cast<unsigned>(workers())) - 1); }
  Byte ranks_of(Byte id) const noexcept;
  bool has_rank(Byte id, int rank) const noexcept;
  /// True if the command has collectives in which several ranks meet.
  bool has_met(Byte id) const noexcept;
  /// The place of the command in the inbox of one of its ranks.
  Byte place_of(Byte id, int rank) const noexcept;
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
  bool has_place(const State& state, Byte id) const noexcept;
  Byte next_to_mark(const State& state, Byte failed) const noexcept;
  void step_master(const State& state, const Visit& visit) const;
  void decide_next(const State& state, const Visit& visit) const;
  void take_master_step(State& state) const;
  void fill_slot(State& state) const;
  void write_places(State& state) const;
  void write_entry(State& state) const;
  void publish_next(State& state) const;
  void find_dependencies(State& state) const;
  void end_publishing(State& state) const;
  void await(const State& state, Step step, const Visit& visit) const;
  void collect(State& state) const;
  void release(State& state) const;
  void check_result(State& state, Byte id, Byte result) const;
  void check_commits(State& state, Byte id, bool is_ok) const;
  bool includes_dependencies(const State& state, Byte id) const noexcept;

  // A worker (worker.cpp).
  void step_worker(const State& state, int rank, const Visit& visit) const;
  void run_function(const State& state, int rank, const Visit& visit) const;
  void take_step(State& state, int rank) const;
  void settle(State& state, int rank) const;
  bool is_unseen(const Worker& worker) const noexcept;
  void await_command(State& state, int rank) const;
  void begin_command(State& state, int rank) const;
  void check_dependencies(State& state, int rank) const;
  void enter_body(State& state, int rank) const;
  void vote(State& state, int rank) const;
  void after_vote(State& state, int rank) const;
  void fail(State& state, int rank, bool is_own) const;
  void report_failure(State& state, int rank) const;
  void leave_or_finish(State& state, int rank) const;
  void finish(State& state, int rank) const;

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
