// The master of the model, its watchers, the doorbells, and fate, which kills processes.

#include "tests/model/protocol.hpp"

#include <algorithm>

#include "tests/model/steps.hpp"

namespace model {

namespace {

constexpr std::array<std::string_view, 33> kWorkerSteps{"await_command",
                                                        "execute: reads the command",
                                                        "shares_a_failure: failed_call",
                                                        "shares_a_failure: acknowledged",
                                                        "the function",
                                                        "reclaim_buffers",
                                                        "meet: contributes",
                                                        "step: clears its step",
                                                        "step: enters the command",
                                                        "step: takes the step",
                                                        "step: rings",
                                                        "step: awaits its peers",
                                                        "step: looks for the absent",
                                                        "check_agreement",
                                                        "run_call: deliver",
                                                        "run_call: votes ok in its outbox",
                                                        "cast_vote: stores the vote",
                                                        "cast_vote: rings",
                                                        "all_voted_ok",
                                                        "complete_call: reduces, commits",
                                                        "report_failure: outbox",
                                                        "raise_failed_call: acknowledged",
                                                        "raise_failed_call: failed_call",
                                                        "raise_failed_call: exchanges",
                                                        "report_failure: Command::failed",
                                                        "report_failure: rings",
                                                        "leave: its steps",
                                                        "leave: clears its step",
                                                        "leave: enters the command",
                                                        "leave: has left",
                                                        "leave: rings",
                                                        "finish: done",
                                                        "finish: rings"};

constexpr std::array<std::string_view, 12> kMasterSteps{
    "the program goes on",      "await_passed",        "next_command",       "publish",  "publish: rings", "drain",
    "failure_of: acknowledges", "close: expects ends", "close: awaits ends", "kill_all", "over",           "dead"};

constexpr std::array<std::string_view, 13> kSubs{"",
                                                 "interrupted?",
                                                 "once more",
                                                 "reads rings",
                                                 "counts itself in",
                                                 "looks again",
                                                 "interrupted, again?",
                                                 "FUTEX_WAIT",
                                                 "asleep",
                                                 "counts itself out",
                                                 "looks after sleep",
                                                 "adds to rings",
                                                 "FUTEX_WAKE"};

}  // namespace

State Protocol::initial() const {
  State state{};
  state.next = 1;
  for (int rank = 0; rank < workers(); ++rank) state.workers[static_cast<std::size_t>(rank)].id = 1;
  return state;
}

Byte Protocol::everybody(Byte id) const noexcept {
  return is_for_all(id) ? static_cast<Byte>((1U << static_cast<unsigned>(workers())) - 1) : bit(call(id).target);
}

bool Protocol::is_proper_end(const State& state) const noexcept {
  if (state.master.pc != over && state.master.pc != dead) return false;
  for (int rank = 0; rank < workers(); ++rank) {
    if (state.workers[static_cast<std::size_t>(rank)].life != Life::dead) return false;
  }
  return true;
}

std::string Protocol::describe(Step step) const {
  const std::string rank = std::to_string(step.rank);
  std::string text;
  switch (step.who) {
    case Step::Who::fate: return step.pc == dead ? "the master dies" : "worker " + rank + " is killed";
    case Step::Who::master: text = "master: " + std::string(kMasterSteps[step.pc]); break;
    case Step::Who::worker: text = "worker " + rank + ": " + std::string(kWorkerSteps[step.pc]); break;
    case Step::Who::watcher: return "watcher of " + rank + ": raise_loss, step " + std::to_string(step.pc);
  }
  const std::string_view sub = kSubs[static_cast<std::size_t>(step.sub)];
  return sub.empty() ? text : text + " (" + std::string(sub) + ")";
}

// ---- ringing: common/os/wait.hpp ---------------------------------------------------------------------------------

/// Takes one of the two steps of Doorbell::wake. Returns true after the second.
bool Protocol::wake(State& state, Process& process, Bell bell) const {
  if (process.sub == Sub::futex_wake) {
    for_each_process(state, bell, [](Process& sleeper) {
      if (sleeper.sub == Sub::asleep) sleeper.sub = Sub::count_out;
    });
    process.sub = Sub::look;
    return true;
  }
  for_each_process(state, bell, [](Process& waiter) {
    if (waiter.sub >= Sub::count_in && waiter.sub <= Sub::futex_wait) waiter.is_stale = 1;
  });
  process.sub = Sub::futex_wake;
  return false;
}

/// Takes one step of Doorbell::ring. Returns true after its last step.
bool Protocol::ring(State& state, Process& process, Bell bell) const {
  if (process.sub != Sub::look) return wake(state, process, bell);
  if (state.sleepers[static_cast<std::size_t>(bell)] == 0) return true;
  process.sub = Sub::bump_rings;
  return false;
}

// ---- all possible steps --------------------------------------------------------------------------------------

void Protocol::for_each_step(const State& state, const Visit& visit) const {
  const bool is_master_alive = state.master.pc != dead;
  const bool is_over = state.master.pc == over || !is_master_alive;
  if (!is_over) step_master(state, visit);
  if (scenario_.master_may_die && !is_over) {
    State next = state;
    next.master = {dead, Sub::look, 0, 0, 0, 0};
    visit(next, {Step::Who::fate, 0, dead, Sub::look});
  }
  for (int rank = 0; rank < workers(); ++rank) {
    const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
    if (worker.life == Life::dead) {
      if (!is_over && worker.watcher != has_told) {
        State next = state;
        step_watcher(next, rank, visit);
      }
      continue;
    }
    if (worker.life == Life::alive) step_worker(state, rank, visit);
    // When the master is dead, the kernel ends its workers, by end of file on the socket and by a death signal.
    if (is_master_alive && (state.deaths == scenario_.deaths || is_over)) continue;
    State next = state;
    end(next.workers[static_cast<std::size_t>(rank)]);
    if (is_master_alive) ++next.deaths;
    visit(next, {Step::Who::fate, static_cast<Byte>(rank), 0, Sub::look});
  }
}

/// WorkerWatcher::on_loss, called by Nursery::raise_loss.
void Protocol::step_watcher(State& state, int rank, const Visit& visit) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Step step{Step::Who::watcher, static_cast<Byte>(rank), worker.watcher, Sub::look};
  Process process{0, Sub::bump_rings, 0, 0, 0, 0};
  const auto wake_half = [&](Bell bell, bool is_second) {
    if (is_second) process.sub = Sub::futex_wake;
    wake(state, process, bell);
  };
  switch (worker.watcher++) {
    case watching:
      if (state.expects_ends != 0) worker.watcher = has_told;
      break;
    case exchange_lost:
      if (state.lost == 0) state.lost = static_cast<Byte>(rank + 1);
      if (is(Mistake::loss_wakes_nobody)) worker.watcher = has_told;
      break;
    case wake_master: wake_half(Bell::to_master, false); break;
    case wake_master_2: wake_half(Bell::to_master, true); break;
    case wake_peers: wake_half(Bell::to_peers, false); break;
    case wake_peers_2: wake_half(Bell::to_peers, true); break;
    case wake_workers: wake_half(Bell::to_workers, false); break;
    default: wake_half(Bell::to_workers, true); break;
  }
  visit(state, step);
}

// ---- the master: launcher/calls/command_runner.cpp ------------------------------------------------------------------

void Protocol::step_master(const State& state, const Visit& visit) const {
  const Step step{Step::Who::master, 0, state.master.pc, state.master.sub};
  const auto is_dead = [](const Worker& worker) { return worker.life == Life::dead; };
  const bool all_have_ended = std::all_of(state.workers.begin(), state.workers.begin() + workers(), is_dead);
  if (state.master.pc == drain_head || state.master.pc == await_passed) return drain(state, visit);
  if (state.master.pc == await_ends && !all_have_ended) return;
  State next = state;
  if (state.master.pc != decide) {
    take_master_step(next);
    return visit(next, step);
  }
  // The program may do either: make one more call, or wait for the oldest one. close() waits for all calls first.
  const bool is_idle = state.drained + 1 == state.next;
  const bool is_full = state.next - state.drained > scenario_.slots && !is(Mistake::reuses_a_full_ring);
  if (state.next < close_id() ? !is_full : is_idle) {
    const bool does_not_wait = is(Mistake::reuses_what_not_all_have_passed) || is(Mistake::reuses_a_full_ring);
    const bool is_free = does_not_wait || have_all_passed(state);
    go(next.master, is_free ? fill : await_passed);
    if (is_free) take_master_step(next);
    visit(next, step);
  }
  if (is_idle) return;
  next = state;
  go(next.master, drain_head);
  visit(next, step);
}

/// Takes one step that other processes can see. The private work of the master before and after it is part of the step.
void Protocol::take_master_step(State& state) const {
  const Byte id = state.next;
  switch (state.master.pc) {
    case fill:
      for (int rank = 0; rank < workers(); ++rank) {
        const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
        const bool reads =
            worker.life != Life::dead && worker.done < worker.id && slot_of(worker.id) == slot_of(id) && worker.id < id;
        expect(state, !reads, Property::slot_is_not_reused);
      }
      state.ring[slot_of(id)].id = id;  // Command::failed keeps its value: it names a command
      return go(state.master, id == close_id() ? expect_ends : publish);
    case expect_ends: state.expects_ends = 1; return go(state.master, publish);
    case publish:
      state.published = id;
      ++state.next;
      return go(state.master, ring_published);
    case ring_published:
      if (ring(state, state.master, Bell::to_workers)) {
        go(state.master, state.published == close_id() ? await_ends : decide);
      }
      return;
    case acknowledge:
      state.acknowledged = static_cast<Byte>(state.next - 1);
      ++state.drained;
      return go(state.master, decide);
    case kill_all:  // first a signal to each worker, then their ends
      for (int rank = 0; rank < workers(); ++rank) {
        Worker& worker = state.workers[static_cast<std::size_t>(rank)];
        if (worker.life != Life::dead) return end(worker);
      }
      return go(state.master, over);
    default: return go(state.master, over);  // await_ends
  }
}

/// True if the master knows that all ranks have passed the command whose slot it uses next (CallTable::passed_). It
/// knows this if it has drained a command for all ranks that is not older than that command.
bool Protocol::have_all_passed(const State& state) const noexcept {
  const int slots = scenario_.slots;
  if (state.next <= slots) return true;
  for (int id = state.next - slots; id <= state.drained; ++id) {
    if (is_for_all(static_cast<Byte>(id))) return true;
  }
  return false;
}

/// drain waits for the ranks of the oldest command in flight. await_passed waits for all ranks, for an older command.
void Protocol::drain(const State& state, const Visit& visit) const {
  const Step step{Step::Who::master, 0, state.master.pc, state.master.sub};
  State next = state;
  const bool drains = state.master.pc == drain_head;
  const Byte id = static_cast<Byte>(drains ? state.drained + 1 : state.next - scenario_.slots);
  const Byte awaited = drains ? everybody(id) : static_cast<Byte>((1U << static_cast<unsigned>(workers())) - 1);
  const auto is_awaited = [&] { return (awaited & bit(next.master.scan)) != 0; };
  const auto done = [&] {
    while (next.master.scan < workers() && !is_awaited()) ++next.master.scan;
    if (state.workers[next.master.scan].done < id) return Answer::no;
    do ++next.master.scan;
    while (next.master.scan < workers() && !is_awaited());
    return next.master.scan == workers() ? Answer::yes : Answer::looking;
  };
  const Outcome outcome = state.master.sub == Sub::asleep
                              ? Outcome::goes_on
                              : wait(next, next.master, Bell::to_master, done, [&] { return state.lost != 0; });
  if (state.master.sub != Sub::asleep) {
    if (outcome == Outcome::ready && drains) collect(next);
    if (outcome == Outcome::ready && !drains) {
      go(next.master, fill);
    }
    if (outcome == Outcome::interrupted) {
      expect(next, state.deaths != 0, Property::loss_is_reported);
      for (Byte other = static_cast<Byte>(state.drained + 1); other < state.next; ++other)
        next.results[other] = Result::lost;
      next.expects_ends = 1;
      go(next.master, kill_all);
    }
    visit(next, step);
  }
  // The deadline. In the model it passes only if a function never returns: no other wait may need it.
  bool is_one_hung = false;
  for (int rank = 0; rank < workers(); ++rank) {
    is_one_hung = is_one_hung || state.workers[static_cast<std::size_t>(rank)].life == Life::hung;
  }
  if (!is_one_hung) return;
  next = state;
  next.expects_ends = 1;
  go(next.master, kill_all);
  visit(next, step);
}

/// collect and failure_of. The ranks of the command have stored `done`, so the values read here no longer change.
void Protocol::collect(State& state) const {
  const Byte id = static_cast<Byte>(state.drained + 1);
  const bool is_consequence = id <= state.acknowledged;
  const bool has_failed = state.ring[slot_of(id)].failed == id || is_consequence;
  Byte reported = 0;
  for (int rank = 0; rank < workers(); ++rank) {
    if ((everybody(id) & bit(rank)) == 0) continue;
    const Outbox& outbox = state.outboxes[slot_of(id)][static_cast<std::size_t>(rank)];
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.vote != Vote::failed || outbox.failed_at == 0) continue;
    if (reported == 0 || outbox.failed_at < reported) reported = outbox.failed_at;
  }
  check_result(state, id, has_failed ? Result::failed : Result::ok, reported);
  state.results[id] = has_failed ? Result::failed : Result::ok;
  const bool acknowledges = has_failed && !is_consequence && !is(Mistake::acknowledges_late);
  if (acknowledges) return go(state.master, acknowledge);
  ++state.drained;
  go(state.master, decide);
}

void Protocol::check_result(State& state, Byte id, Result result, Byte reported) const {
  const bool is_consequence = id <= state.acknowledged;
  const bool should_fail = state.failed[id] != 0 || is_consequence;
  expect(state, (result == Result::failed) == should_fail, Property::failure_iff_one_failed);
  if (result == Result::ok) expect(state, state.ran[id] == everybody(id), Property::success_means_all_ran);
  if (!is_consequence) expect(state, reported == state.first_failed_at[id], Property::first_failure_is_reported);
  // After the vote, a single rank may still fail. A call to one rank does not wait for other ranks (see
  // docs/protocol.md).
  if (scenario_.may_fail_late || !is_for_all(id)) return;
  expect(state, state.committed[id] == 0 || state.committed[id] == everybody(id), Property::all_commit_or_none);
  const bool should_commit = result == Result::ok && call(id).wants_vote;
  expect(state, (state.committed[id] != 0) == should_commit, Property::commit_as_reported);
}

}  // namespace model
