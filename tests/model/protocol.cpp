// The doorbells of the model, the watchers of the master, and fate, which kills processes.

#include "tests/model/protocol.hpp"

#include <algorithm>
#include <bit>

#include "tests/model/steps.hpp"

namespace model {

namespace {

constexpr std::array<std::string_view, 38> kWorkerSteps{"await_command",
                                                        "serve: reads the command",
                                                        "has_lost_a_rank",
                                                        "await_earlier",
                                                        "depends_on_a_failure: failed",
                                                        "depends_on_a_failure: spoiled",
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
                                                        "report_failure: Command::failed",
                                                        "report_failure: rings",
                                                        "leave: its steps",
                                                        "leave: clears its step",
                                                        "leave: enters the command",
                                                        "leave: has left",
                                                        "leave: rings",
                                                        "finish: done",
                                                        "finish: rings",
                                                        "finish: wakes readers",
                                                        "run_move: begins to copy",
                                                        "run_move: has copied",
                                                        "drop_spare",
                                                        "drop_spare: appoints a successor",
                                                        "start_move_ahead: begins to copy"};

constexpr std::array<std::string_view, 17> kMasterSteps{"the program waits",
                                                        "close: expects ends",
                                                        "publish: places",
                                                        "publish: an inbox",
                                                        "publish: rings",
                                                        "await",
                                                        "release: marks a dependent call",
                                                        "close: awaits ends",
                                                        "kill_all",
                                                        "over",
                                                        "dead",
                                                        "claim_copy",
                                                        "claim_home",
                                                        "bring_copy: publishes a move",
                                                        "publish: an inbox, after claims",
                                                        "mark_spare_copies",
                                                        "await_survivors"};

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
  const bool has_shares =
      std::any_of(scenario_.calls.begin(), scenario_.calls.end(), [](const Call& call) { return call.uses_shares; });
  if (has_shares) state.shares = all_ranks();
  for (std::size_t i = 0; i < scenario_.values.size(); ++i) {
    Value& value = state.values[i];
    value.home = kNowhere;
    const int home = scenario_.values[i];
    if (home < 0) continue;
    value.home = static_cast<Byte>(home);
    value.valid = bit(home) | scenario_.copies;
    for (int rank = 0; rank < workers(); ++rank) {
      if ((value.valid & bit(rank)) != 0) value.contents[static_cast<std::size_t>(rank)] = kFirstValues;
    }
    mark_at_once(state, static_cast<Byte>(i));
  }
  return state;
}

bool Protocol::had_copy_at_start(Byte index, Byte rank) const noexcept {
  const int home = scenario_.values[index];
  return home >= 0 && ((bit(home) | scenario_.copies) & bit(rank)) != 0;
}

// ---- commands, sets of ranks, places ---------------------------------------------------------------------------

Protocol::Move Protocol::move_of(const State& state, Byte id) noexcept {
  const unsigned what = state.what[id];
  return {static_cast<Byte>(what >> 4U & 1U), static_cast<Byte>(what >> 2U & 3U), static_cast<Byte>(what & 3U)};
}

const Call& Protocol::call(const State& state, Byte id) const noexcept {
  static const Call kNothing{.has_outputs = false};
  return state.what[id] >= kClose ? kNothing : scenario_.calls[state.what[id] - 1U];
}

Byte Protocol::ranks_of(const State& state, Byte id) const noexcept {
  if (!is_move(state, id)) return ranks_of(call(state, id));
  const Move move = move_of(state, id);
  return bit(move.to == kHost ? move.from : move.to);
}

bool Protocol::has_rank(const State& state, Byte id, int rank) const noexcept {
  return (ranks_of(state, id) & bit(rank)) != 0;
}

Byte Protocol::rank_of(const State& state, Byte id) const noexcept {
  return static_cast<Byte>(std::countr_zero(ranks_of(state, id)));
}

bool Protocol::has_met(const State& state, Byte id) const noexcept {
  return call(state, id).operations != 0 && std::popcount(ranks_of(state, id)) > 1;
}

Byte Protocol::place_of(const State& state, Byte id, int rank) const noexcept {
  int earlier = 0;
  for (Byte other = 1; other < id; ++other) earlier += has_rank(state, other, rank) ? 1 : 0;
  return static_cast<Byte>(earlier % scenario_.places);
}

Outbox& Protocol::outbox_of(State& state, Byte slot, int rank) noexcept {
  const auto index = static_cast<std::size_t>(rank);
  return state.outboxes[index][state.pool[slot].places[index]];
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
    case Step::Who::master:
      text = "master: " + std::string(kMasterSteps[step.pc]);
      if (step.rank != 0) text += " (command " + rank + ")";
      break;
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
    const bool is_mortal = scenario_.mortal_ranks == 0 || (scenario_.mortal_ranks & bit(rank)) != 0;
    if (is_master_alive && (state.deaths == scenario_.deaths || is_over || !is_mortal)) continue;
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
      else if (scenario_.respawns) state.is_lost |= bit(rank);  // otherwise, no process reads it
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

}  // namespace model
