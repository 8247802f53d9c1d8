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
  Byte rank;
  Byte pc;
  Sub sub;
};

enum class Property : Byte {
  slot_is_not_reused,
  outbox_is_of_this_command,
  contribution_is_of_this_operation,
  nobody_is_blamed_for_leaving,
  failure_iff_one_failed,
  success_means_all_ran,
  first_failure_is_reported,
  all_commit_or_none,
  commit_as_reported,
  loss_is_reported,
};
inline constexpr std::array<std::string_view, 10> kProperties{
    "a slot of the ring is written while a worker still reads it",
    "an outbox is read that is not of this command",
    "a contribution is read that is not of this operation",
    "a rank is blamed for leaving a collective that all ranks call",
    "a call fails though no rank of it failed, or succeeds though one did",
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

  int workers() const noexcept { return scenario_.workers; }
  std::size_t slot_of(Byte id) const noexcept { return id % static_cast<std::size_t>(scenario_.slots); }
  Byte close_id() const noexcept { return static_cast<Byte>(scenario_.calls.size() + 1); }
  const Call& call(Byte id) const noexcept { return scenario_.calls[id - 1U]; }
  bool is(Mistake mistake) const noexcept { return scenario_.mistake == mistake; }
  bool is_for_all(Byte id) const noexcept { return call(id).target < 0; }
  Byte everybody(Byte id) const noexcept;

  template <class Ready, class Interrupted>
  Outcome wait(State& state, Process& process, Bell bell, Ready ready, Interrupted interrupted) const;
  bool ring(State& state, Process& process, Bell bell) const;
  bool wake(State& state, Process& process, Bell bell) const;
  template <class Visitor>
  void for_each_process(State& state, Bell bell, Visitor visitor) const;

  void step_master(const State& state, const Visit& visit) const;
  void take_master_step(State& state) const;
  bool have_all_passed(const State& state) const noexcept;
  void drain(const State& state, const Visit& visit) const;
  void collect(State& state) const;
  void check_result(State& state, Byte id, Result result, Byte reported) const;
  void step_worker(const State& state, int rank, const Visit& visit) const;
  void run_function(const State& state, int rank, const Visit& visit) const;
  void take_step(State& state, int rank) const;
  void settle(State& state, int rank) const;
  bool is_unseen(const Worker& worker) const noexcept;
  void wait_for_peers(State& state, int rank) const;
  void meet(State& state, int rank) const;
  void vote(State& state, int rank) const;
  void report_failure(State& state, int rank) const;
  void finish(State& state, int rank) const;
  void look_for_absent(State& state, int rank) const;
  void fail(State& state, int rank, bool is_own) const;
  void after_vote(State& state, int rank) const;
  void leave_or_finish(State& state, int rank) const;
  bool is_given_up(const State& state, const Worker& worker) const noexcept;
  Answer presence(const State& state, Worker& worker, int rank) const;
  Answer votes(State& state, Worker& worker, int rank) const;
  Answer peers_are_done(const State& state, Worker& worker, int rank) const;
  void step_watcher(State& state, int rank, const Visit& visit) const;

  Scenario scenario_;
};

}  // namespace model
