#pragma once

// The positions of processes in their code, and functions that the parts of the model share.

#include <optional>

#include "tests/model/protocol.hpp"

namespace model {

enum WorkerPc : Byte {
  await_next,
  read_command,
  look_for_lost,
  await_ranks,
  load_failed,
  load_spoiled,
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
  store_failed,
  ring_failed,
  leave_steps,
  leave_clear,
  leave_command,
  leave_step,
  ring_left,
  store_done,
  ring_done,
  ring_readers,
  move_begin,
  move_end,
  drop_copy,
  appoint_copy,
  copy_ahead,  // only the name of a step: the worker stays where it is
};

enum MasterPc : Byte {
  decide,
  expect_ends,
  put_places,
  put_entries,
  ring_published,
  await_call,
  mark_dependents,
  await_ends,
  kill_all,
  over,
  dead,
  claim_copies,
  claim_homes,
  begin_move,
  begin_call,
  mark_copies,
  await_others,
};

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

constexpr Byte bit(int rank) noexcept { return static_cast<Byte>(1U << static_cast<unsigned>(rank)); }
constexpr Byte without(Byte set, int rank) noexcept { return static_cast<Byte>(set & ~bit(rank)); }
constexpr Byte contribution_of(const Worker& worker) noexcept {
  return static_cast<Byte>(16 * worker.id + worker.step + 1);
}

inline void go(Process& process, Byte pc) noexcept {
  process.pc = pc;
  process.sub = Sub::look;
  process.scan = process.phase = process.mask = 0;
}

/// Ends the process of a worker. Its private state is lost, but its slot in the control block stays.
inline void end(Worker& worker) noexcept {
  worker.life = Life::dead;
  worker.process = {};
  worker.id = worker.slot = worker.received = worker.step = worker.begun = worker.last = worker.readers = 0;
  worker.known = worker.seen = worker.ahead = worker.is_late = worker.skips = 0;
}

/// The doorbell at which a worker waits in this position. Empty if it does not wait.
constexpr std::optional<Bell> bell_of(Byte pc) noexcept {
  switch (pc) {
    case await_next: return Bell::to_workers;
    case await_ranks: return Bell::to_master;
    case reclaim:
    case meet_peers:
    case tally_votes: return Bell::to_peers;
    default: return std::nullopt;
  }
}

inline void expect(State& state, bool holds, Property property) noexcept {
  if (!holds && state.broken == 0) state.broken = static_cast<Byte>(static_cast<Byte>(property) + 1);
}

// ---- waiting and ringing: common/os/wait.hpp ---------------------------------------------------------------------

/// wait_until, with two differences. There is no spinning: a process that spins only checks more often, and sees no
/// more than one check at the right time sees. A sleep does not end after 100 ms: no part of the protocol may rely on
/// that.
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
    if (state.master.pc == await_call || state.master.pc == await_others) visitor(state.master);
  }
  for (int rank = 0; rank < workers(); ++rank) {
    Worker& worker = state.workers[static_cast<std::size_t>(rank)];
    if (worker.life == Life::alive && bell_of(worker.process.pc) == bell) visitor(worker.process);
  }
}

}  // namespace model
