#include "tests/model/protocol.hpp"

#include <algorithm>

namespace model {

namespace {

enum WorkerPc : Byte {
  await_command,
  begin_command,
  load_failed_call,
  load_acknowledged,
  body,
  reclaim,
  contribute,
  clear_step,
  enter_command,
  enter_step,
  ring_step,
  meet_peers,
  look_for_absent_ranks,
  read_contributions,
  deliver,
  write_vote,
  store_vote,
  ring_vote,
  tally_votes,
  reduce_and_commit,
  write_failure,
  raise_acknowledged,
  raise_known,
  raise_exchange,
  store_failed,
  ring_failed,
  leave_steps,
  leave_clear,
  leave_command,
  leave_step,
  ring_left,
  store_done,
  ring_done,
};
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

enum MasterPc : Byte {
  decide,
  fill,
  publish,
  ring_published,
  drain_head,
  acknowledge,
  expect_ends,
  await_ends,
  kill_all,
  over,
  dead,
};
constexpr std::array<std::string_view, 11> kMasterSteps{
    "the program goes on", "next_command",       "publish",  "publish: rings", "drain", "failure_of: acknowledges",
    "close: expects ends", "close: awaits ends", "kill_all", "over",           "dead"};

enum WatcherPc : Byte {
  watching,
  exchange_lost,
  wake_master,
  wake_master_2,
  wake_peers,
  wake_peers_2,
  wake_workers,
  wake_workers_2,
  has_told
};

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

constexpr std::size_t slot_of(Byte id) noexcept { return id % kRingSize; }
constexpr Byte bit(int rank) noexcept { return static_cast<Byte>(1U << static_cast<unsigned>(rank)); }
constexpr Byte contribution_of(const Worker& worker) noexcept {
  return static_cast<Byte>(16 * worker.id + worker.step + 1);
}

void go(Process& process, Byte pc) noexcept {
  process.pc = pc;
  process.sub = Sub::look;
  process.scan = process.phase = process.mask = 0;
}

/// What a process has for itself goes with it; its slot in the control block stays.
void end(Worker& worker) noexcept {
  worker.life = Life::dead;
  worker.process = {};
  worker.step = worker.begun = worker.last = worker.known = worker.seen = worker.is_own = worker.is_late = 0;
}

void expect(State& state, bool holds, Property property) noexcept {
  if (!holds && state.broken == 0) state.broken = static_cast<Byte>(static_cast<Byte>(property) + 1);
}

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

// ---- waiting and ringing: common/wait.hpp ---------------------------------------------------------------------

/// wait_until, without its spinning (which looks as often as it likes, and sees what one look at the right time sees) and
/// without the end of its sleep after 100 ms: nothing may rely on that.
template <class Ready, class Interrupted>
Protocol::Outcome Protocol::wait(State& state, Process& process, Bell bell, Ready ready,
                                 Interrupted interrupted) const {
  Byte& sleepers = state.sleepers[static_cast<std::size_t>(bell)];
  const auto look = [&](Sub if_not, Sub if_so) {
    const Answer answer = ready();
    if (answer == Answer::looking) return Outcome::goes_on;
    process.scan = process.phase = 0;
    if (answer == Answer::yes && if_so == Sub::look) return Outcome::ready;
    process.mask = 0;
    process.sub = answer == Answer::yes ? if_so : if_not;
    return Outcome::goes_on;
  };
  switch (process.sub) {
    case Sub::look: return look(Sub::interrupted, Sub::look);
    case Sub::interrupted: process.sub = interrupted() ? Sub::look_once_more : Sub::see_rings; break;
    case Sub::look_once_more:
      if (look(Sub::asleep, Sub::look) == Outcome::ready) return Outcome::ready;
      return process.sub == Sub::asleep ? Outcome::interrupted : Outcome::goes_on;
    case Sub::see_rings:
      process.is_stale = 0;
      process.sub = Sub::count_in;
      break;
    case Sub::count_in:
      ++sleepers;
      process.sub = is(Mistake::sleeps_without_recheck) ? Sub::futex_wait : Sub::recheck;
      break;
    case Sub::recheck: return look(Sub::recheck_interrupted, Sub::count_out);
    case Sub::recheck_interrupted: process.sub = interrupted() ? Sub::count_out : Sub::futex_wait; break;
    case Sub::futex_wait: process.sub = process.is_stale != 0 ? Sub::count_out : Sub::asleep; break;
    case Sub::count_out:
      --sleepers;
      process.is_stale = 0;
      process.sub = Sub::look_after;
      break;
    case Sub::look_after: return look(Sub::look, Sub::look);
    default: break;
  }
  return Outcome::goes_on;
}

template <class Visitor>
void Protocol::for_each_process(State& state, Bell bell, Visitor visitor) const {
  if (bell == Bell::to_master) {
    if (state.master.pc == drain_head) visitor(state.master);
    return;
  }
  for (int rank = 0; rank < workers(); ++rank) {
    Worker& worker = state.workers[static_cast<std::size_t>(rank)];
    const bool is_there = (worker.process.pc == await_command) == (bell == Bell::to_workers);
    const bool waits = worker.process.pc == await_command || worker.process.pc == reclaim ||
                       worker.process.pc == meet_peers || worker.process.pc == tally_votes;
    if (worker.life == Life::alive && is_there && waits) visitor(worker.process);
  }
}

/// Doorbell::wake, in two steps. True after the second.
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

/// Doorbell::ring. True after its last step.
bool Protocol::ring(State& state, Process& process, Bell bell) const {
  if (process.sub != Sub::look) return wake(state, process, bell);
  if (state.sleepers[static_cast<std::size_t>(bell)] == 0) return true;
  process.sub = Sub::bump_rings;
  return false;
}

// ---- who can take a step --------------------------------------------------------------------------------------

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
    // The kernel ends a worker whose master is dead (end of file on the socket, and a death signal).
    if (is_master_alive && (state.deaths == scenario_.deaths || is_over)) continue;
    State next = state;
    end(next.workers[static_cast<std::size_t>(rank)]);
    if (is_master_alive) ++next.deaths;
    visit(next, {Step::Who::fate, static_cast<Byte>(rank), 0, Sub::look});
  }
}

/// WorkerBrood::on_loss, by Nursery::raise_loss.
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

// ---- the master: launcher/session_core.cpp --------------------------------------------------------------------

void Protocol::step_master(const State& state, const Visit& visit) const {
  const Step step{Step::Who::master, 0, state.master.pc, state.master.sub};
  const auto is_dead = [](const Worker& worker) { return worker.life == Life::dead; };
  const bool all_have_ended = std::all_of(state.workers.begin(), state.workers.begin() + workers(), is_dead);
  if (state.master.pc == drain_head) return drain(state, visit);
  if (state.master.pc == await_ends && !all_have_ended) return;
  State next = state;
  if (state.master.pc != decide) {
    take_master_step(next);
    return visit(next, step);
  }
  // What the program does next is open: one more call, or to wait for the oldest. close() waits for all.
  const bool is_idle = state.drained + 1 == state.next;
  const bool is_full = state.next - state.drained > kRingSize && !is(Mistake::reuses_a_full_ring);
  if (state.next < close_id() ? !is_full : is_idle) {
    go(next.master, fill);
    take_master_step(next);
    visit(next, step);
  }
  if (is_idle) return;
  next = state;
  go(next.master, drain_head);
  visit(next, step);
}

/// One that others can see; what comes before and behind it, for the master alone, goes with it.
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
      state.ring[slot_of(id)].id = id;  // Command::failed is left as it is: it names a command
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
    case kill_all:  // a signal each; then their ends
      for (int rank = 0; rank < workers(); ++rank) {
        Worker& worker = state.workers[static_cast<std::size_t>(rank)];
        if (worker.life != Life::dead) return end(worker);
      }
      return go(state.master, over);
    default: return go(state.master, over);  // await_ends
  }
}

void Protocol::drain(const State& state, const Visit& visit) const {
  const Step step{Step::Who::master, 0, state.master.pc, state.master.sub};
  State next = state;
  const Byte id = static_cast<Byte>(state.drained + 1);
  const auto done = [&] {
    if (state.workers[state.master.scan].done < id) return Answer::no;
    return ++next.master.scan == workers() ? Answer::yes : Answer::looking;
  };
  const Outcome outcome = state.master.sub == Sub::asleep
                              ? Outcome::goes_on
                              : wait(next, next.master, Bell::to_master, done, [&] { return state.lost != 0; });
  if (state.master.sub != Sub::asleep) {
    if (outcome == Outcome::ready) collect(next);
    if (outcome == Outcome::interrupted) {
      expect(next, state.deaths != 0, Property::loss_is_reported);
      for (Byte other = id; other < state.next; ++other) next.results[other] = Result::lost;
      next.expects_ends = 1;
      go(next.master, kill_all);
    }
    visit(next, step);
  }
  // The deadline: it comes where a function never returns, and nothing else needs it.
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

/// collect and failure_of. All ranks are done with it: nothing that is read here changes any more.
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
  // After the vote a rank may still fail by itself; and a call to one rank asks nobody (see docs/protocol.md).
  if (scenario_.may_fail_late || !is_for_all(id)) return;
  expect(state, state.committed[id] == 0 || state.committed[id] == everybody(id), Property::all_commit_or_none);
  const bool should_commit = result == Result::ok && call(id).wants_vote;
  expect(state, (state.committed[id] != 0) == should_commit, Property::commit_as_reported);
}

// ---- a worker: worker/worker_core.cpp -------------------------------------------------------------------------

void Protocol::step_worker(const State& state, int rank, const Visit& visit) const {
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  if (worker.process.sub == Sub::asleep) return;
  if (worker.process.pc == body) return run_function(state, rank, visit);
  const Step step{Step::Who::worker, static_cast<Byte>(rank), worker.process.pc, worker.process.sub};
  State next = state;
  take_step(next, rank);
  settle(next, rank);
  visit(next, step);
  if (worker.process.pc != reduce_and_commit || !scenario_.may_fail_late || state.failures == scenario_.failures)
    return;
  next = state;
  fail(next, rank, true);
  next.workers[static_cast<std::size_t>(rank)].is_late = 1;
  visit(next, step);
}

/// What a function does is open, within what the scenario allows: it returns, throws, or never comes back.
void Protocol::run_function(const State& state, int rank, const Visit& visit) const {
  const Step step{Step::Who::worker, static_cast<Byte>(rank), body, Sub::look};
  const auto index = static_cast<std::size_t>(rank);
  const Worker& worker = state.workers[index];
  State next = state;
  const bool has_more = worker.step < call(worker.id).operations;
  go(next.workers[index].process, has_more ? reclaim : deliver);
  visit(next, step);
  const bool may_fail = scenario_.failing_call == 0 || scenario_.failing_call == worker.id;
  if (may_fail && state.failures < scenario_.failures) {
    next = state;
    fail(next, rank, true);
    settle(next, rank);
    visit(next, step);
  }
  if (!scenario_.functions_may_hang) return;
  next = state;
  next.workers[index].life = Life::hung;
  visit(next, step);
}

/// Steps that nobody else can see, or that write what nobody reads before a later step, are taken with the one before.
bool Protocol::is_unseen(const Worker& worker) const noexcept {
  switch (worker.process.pc) {
    case begin_command:
    case leave_steps: return true;
    case write_vote: return !is(Mistake::done_before_outputs) && !is(Mistake::vote_before_outbox);
    case write_failure: return worker.is_late == 0;
    default: return false;
  }
}

void Protocol::settle(State& state, int rank) const {
  const Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  while (worker.life == Life::alive && is_unseen(worker)) take_step(state, rank);
}

void Protocol::take_step(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte pc = process.pc;
  if (pc == reclaim || pc == meet_peers || pc == tally_votes) return wait_for_peers(state, rank);
  if (pc >= contribute && pc <= read_contributions) return meet(state, rank);
  if (pc >= deliver && pc <= reduce_and_commit) return vote(state, rank);
  if (pc >= write_failure && pc <= ring_failed) return report_failure(state, rank);
  if (pc >= leave_steps) return finish(state, rank);
  switch (pc) {
    case await_command: {
      const auto published = [&] { return state.published >= worker.id ? Answer::yes : Answer::no; };
      const auto outcome = wait(state, process, Bell::to_workers, published, [&] { return state.lost != 0; });
      if (outcome == Outcome::ready) go(process, begin_command);
      if (outcome == Outcome::interrupted) end(worker);
      return;
    }
    case begin_command:
      expect(state, state.ring[slot_of(worker.id)].id == worker.id, Property::slot_is_not_reused);
      if (worker.id == close_id()) return end(worker);
      if ((everybody(worker.id) & bit(rank)) == 0) return go(process, store_done);
      return go(process, load_failed_call);
    case load_failed_call: worker.known = state.failed_call; return go(process, load_acknowledged);
    case load_acknowledged: {
      const Byte failed = worker.known;
      worker.known = 0;
      const bool shares = worker.id <= state.acknowledged || (failed > state.acknowledged && failed < worker.id);
      if (shares && !is(Mistake::forgets_a_failed_call)) return fail(state, rank, false);
      if (call(worker.id).operations != 0) {
        worker.begun = worker.id;
        worker.step = 0;
      }
      return go(process, body);
    }
    default: return;
  }
}

bool Protocol::is_given_up(const State& state, const Worker& worker) const noexcept {
  return state.ring[slot_of(worker.id)].failed == worker.id || state.lost != 0;
}

/// CpuComm::await, and the wait of all_voted_ok.
void Protocol::wait_for_peers(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte pc = process.pc;
  if (pc == reclaim && (worker.last == worker.id || is(Mistake::no_reclaim))) return go(process, contribute);
  const auto ready = [&] {
    if (pc == reclaim) return peers_are_done(state, worker, rank);
    return pc == meet_peers ? presence(state, worker, rank) : votes(state, worker, rank);
  };
  // A rank that failed stays in the vote: only a loss ends that wait early.
  const auto interrupted = [&] { return pc == tally_votes ? state.lost != 0 : is_given_up(state, worker); };
  const Outcome outcome = wait(state, process, Bell::to_peers, ready, interrupted);
  if (outcome == Outcome::goes_on) return;
  if (outcome == Outcome::interrupted) {
    if (state.lost != 0) return end(worker);  // SessionLost
    return fail(state, rank, false);          // Abandoned
  }
  const Byte found = process.mask;
  if (pc == reclaim) {
    worker.last = worker.id;
    return go(process, contribute);
  }
  if (pc == meet_peers) {
    go(process, found != 0 ? look_for_absent_ranks : read_contributions);
    process.mask = found;
    return;
  }
  const bool all_are_for_it = found == 0 || is(Mistake::commits_without_vote);
  if (all_are_for_it) return go(process, reduce_and_commit);
  leave_or_finish(state, rank);
}

/// A condition over all ranks looks at one after the other. Yes: it holds for all; no: not for this one.
Protocol::Answer Protocol::peers_are_done(const State& state, Worker& worker, int rank) const {
  Byte& other = worker.process.scan;
  if (other != rank && state.workers[other].done < worker.last) return Answer::no;
  return ++other == workers() ? Answer::yes : Answer::looking;
}

/// The mask holds who is not for it.
Protocol::Answer Protocol::votes(State& state, Worker& worker, int rank) const {
  static_cast<void>(rank);
  Byte& other = worker.process.scan;
  const Byte id = worker.id;
  if ((everybody(id) & bit(other)) != 0) {
    if (state.workers[other].vote < id) return Answer::no;
    const Outbox& outbox = state.outboxes[slot_of(id)][other];
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.vote != Vote::ok) worker.process.mask |= bit(other);
  }
  return ++other == workers() ? Answer::yes : Answer::looking;
}

/// CpuComm::presence_of, a load a step. The mask holds who is elsewhere.
Protocol::Answer Protocol::presence(const State& state, Worker& worker, int rank) const {
  Process& process = worker.process;
  const Worker& other = state.workers[process.scan];
  const auto go_to_next = [&] {
    worker.known = worker.seen = 0;
    process.phase = 0;
    return ++process.scan == workers() ? Answer::yes : Answer::looking;
  };
  const auto is_behind = [&] {
    worker.known = worker.seen = 0;
    return Answer::no;
  };
  if (process.scan == rank) return go_to_next();
  switch (process.phase++) {
    case 0: worker.known = other.collective_command; return worker.known < worker.id ? is_behind() : Answer::looking;
    case 1: worker.seen = other.collective_step; return Answer::looking;
    default: break;
  }
  const bool is_here = worker.known == worker.id && worker.seen != kLeft && other.collective_command == worker.id;
  if (!is_here) {
    process.mask |= bit(process.scan);
    return go_to_next();
  }
  return worker.seen >= worker.step ? go_to_next() : is_behind();
}

/// CpuComm::meet, from where it brings its contribution to where it reads the others'.
void Protocol::meet(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const std::size_t parity = is(Mistake::one_contribution) ? 0 : worker.step % 2U;
  switch (process.pc) {
    case contribute:
      worker.contributions[parity] = contribution_of(worker);
      if (worker.step != 0) return go(process, enter_step);
      return go(process, is(Mistake::command_before_step_is_cleared) ? enter_command : clear_step);
    case clear_step:
      worker.collective_step = 0;
      return go(process, is(Mistake::command_before_step_is_cleared) ? enter_step : enter_command);
    case enter_command:
      worker.collective_command = worker.id;
      return go(process, is(Mistake::command_before_step_is_cleared) ? clear_step : enter_step);
    case enter_step: worker.collective_step = ++worker.step; return go(process, ring_step);
    case ring_step:
      if (ring(state, process, Bell::to_peers)) go(process, meet_peers);
      return;
    case look_for_absent_ranks: return look_for_absent(state, rank);
    default: break;
  }
  --worker.step;  // the operation whose contributions these are
  const std::size_t read = is(Mistake::one_contribution) ? 0 : worker.step % 2U;
  for (int other = 0; other < workers(); ++other) {
    expect(state, state.workers[static_cast<std::size_t>(other)].contributions[read] == contribution_of(worker),
           Property::contribution_is_of_this_operation);
  }
  ++worker.step;
  go(process, body);
}

/// Who has left without this step is to blame, unless the call is given up. In the model all ranks call the same.
void Protocol::look_for_absent(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte id = worker.id;
  for (int other = 0; other < workers(); ++other) {
    if ((worker.process.mask & bit(other)) == 0) continue;
    const Outbox& outbox = state.outboxes[slot_of(id)][static_cast<std::size_t>(other)];
    expect(state, outbox.command == id, Property::outbox_is_of_this_command);
    if (outbox.steps >= worker.step) continue;
    expect(state, is_given_up(state, worker), Property::nobody_is_blamed_for_leaving);
    return fail(state, rank, false);  // Abandoned, also where the session is lost: the next wait says so
  }
  go(worker.process, read_contributions);
}

/// The end of run_call: outputs, the vote, and what follows from it.
void Protocol::vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = state.outboxes[slot_of(id)][static_cast<std::size_t>(rank)];
  switch (process.pc) {
    case deliver:
      if (is(Mistake::done_before_outputs) && !call(id).wants_vote) {
        worker.done = id;
        return go(process, write_vote);
      }
      if (is(Mistake::vote_before_outbox) && call(id).has_outputs) worker.vote = id;
      // A body may have swallowed what a collective threw.
      if (call(id).operations != 0 && state.ring[slot_of(id)].failed == id) return fail(state, rank, false);
      return go(process, write_vote);
    case write_vote:
      outbox = {id, Vote::ok, 0, 0};
      state.ran[id] |= bit(rank);
      return go(process, store_vote);
    case store_vote:
      if (!call(id).has_outputs && !call(id).wants_vote) return after_vote(state, rank);
      worker.vote = id;
      return go(process, ring_vote);
    case ring_vote:
      if (ring(state, process, Bell::to_peers)) after_vote(state, rank);
      return;
    default: break;
  }
  // reduce_and_commit
  if (call(id).is_large) {
    for (int other = 0; other < workers(); ++other) {
      const bool is_ours = state.outboxes[slot_of(id)][static_cast<std::size_t>(other)].command == id;
      expect(state, is_ours, Property::outbox_is_of_this_command);
    }
  }
  if (call(id).wants_vote) state.committed[id] |= bit(rank);
  leave_or_finish(state, rank);
}

void Protocol::after_vote(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const Byte id = worker.id;
  const bool is_for_it = state.outboxes[slot_of(id)][static_cast<std::size_t>(rank)].vote == Vote::ok;
  // Who shares an earlier failure returns from `execute` right after its vote: known is 1.
  const bool waits = worker.known == 0 && (call(id).wants_vote || (is_for_it && call(id).is_large));
  worker.known = 0;
  if (waits) return go(worker.process, tally_votes);
  leave_or_finish(state, rank);
}

/// To report_failure. Not its own: the call was abandoned, or shares the failure of one before it.
void Protocol::fail(State& state, int rank, bool is_own) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  worker.is_own = is_own ? 1 : 0;
  worker.known = worker.process.pc == load_acknowledged ? 1 : 0;
  worker.seen = 0;
  if (is_own) {
    ++state.failures;
    state.failed[worker.id] |= bit(rank);
    if (state.first_failed_at[worker.id] == 0) state.first_failed_at[worker.id] = state.failures;
    worker.seen = state.failures;  // failed_ns
  }
  go(worker.process, write_failure);
}

void Protocol::report_failure(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  const bool skips_vote = is(Mistake::no_vote_after_shared_failure) && worker.known == 1;
  switch (process.pc) {
    case write_failure:
      state.outboxes[slot_of(id)][static_cast<std::size_t>(rank)] = {id, Vote::failed, worker.seen, 0};
      worker.seen = 0;
      return go(process, worker.is_own != 0 ? raise_acknowledged : store_failed);
    case raise_acknowledged:
      worker.step = static_cast<Byte>(16 * state.acknowledged + worker.step);  // both are kept until it is raised
      return go(process, raise_known);
    case raise_known: worker.seen = state.failed_call; return go(process, raise_exchange);
    case raise_exchange: {
      const Byte acknowledged = worker.step / 16;
      const bool is_to_be_raised = id > acknowledged && (worker.seen <= acknowledged || worker.seen > id);
      if (is_to_be_raised && state.failed_call != worker.seen) {
        worker.seen = state.failed_call;
        return;
      }
      if (is_to_be_raised) state.failed_call = id;
      worker.seen = 0;
      worker.step %= 16;
      return go(process, store_failed);
    }
    case store_failed:
      state.ring[slot_of(id)].failed = id;
      worker.is_own = 0;
      return go(process, ring_failed);
    default: break;
  }
  if (!ring(state, process, Bell::to_peers)) return;
  if (skips_vote || worker.is_late != 0) {
    worker.known = worker.is_late = 0;
    return leave_or_finish(state, rank);
  }
  go(process, store_vote);
}

void Protocol::leave_or_finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  const bool leaves = call(worker.id).operations != 0 && is_for_all(worker.id) && workers() > 1;
  go(worker.process, leaves ? leave_steps : store_done);
}

/// CpuComm::leave, and the end of WorkerCore::finish.
void Protocol::finish(State& state, int rank) const {
  Worker& worker = state.workers[static_cast<std::size_t>(rank)];
  Process& process = worker.process;
  const Byte id = worker.id;
  Outbox& outbox = state.outboxes[slot_of(id)][static_cast<std::size_t>(rank)];
  switch (process.pc) {
    case leave_steps:
      // CpuComm knows a command by its slot: an older one there is taken for this one. Its step count is then the old one's.
      outbox.steps = worker.begun != 0 && slot_of(worker.begun) == slot_of(id) ? worker.step : 0;
      return go(process, outbox.steps == 0 ? leave_clear : leave_step);
    case leave_clear: worker.collective_step = 0; return go(process, leave_command);
    case leave_command: worker.collective_command = id; return go(process, leave_step);
    case leave_step: worker.collective_step = kLeft; return go(process, ring_left);
    case ring_left:
      if (ring(state, process, Bell::to_peers)) go(process, store_done);
      return;
    case store_done:
      if (is(Mistake::rings_before_done) && process.phase == 0) {
        if (!ring(state, process, Bell::to_master)) return;
        process.phase = 1;
        return;
      }
      worker.done = id;
      go(process, ring_done);
      if (is(Mistake::rings_before_done)) process.sub = Sub::look;
      return;
    default: break;
  }
  if (!is(Mistake::rings_before_done) && !ring(state, process, Bell::to_master)) return;
  ++worker.id;
  go(process, await_command);
}

}  // namespace model
