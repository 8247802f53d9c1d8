#include "master/session/session_end.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "master/process/child_end.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::session {

namespace {

constexpr os::Milliseconds kPeersLimit{100};
// Peers that have a core wake within this time. Until then this thread yields its core, because a sleep would be too
// long.
constexpr os::Milliseconds kPeersWake{2};

/// Gives peers that wait for each other a moment to record when they stopped waiting, before they are ended. This process
/// does not see the records of other nodes.
void await_peers_release(const protocol::ControlBlock& control, int lost) {
  const auto is_waiting = [&](int rank) {
    const protocol::WorkerSlot& slot = control.worker(rank);
    const protocol::Phase phase = protocol::phase_of(slot.progress.load(std::memory_order_acquire));
    return rank != lost && control.place().has(rank) && slot.released_ns.load(std::memory_order_acquire) == 0 &&
           (phase == protocol::Phase::collective || phase == protocol::Phase::vote);
  };
  const auto begin = os::Clock::now();
  for (int rank = 0; rank < control.world_size(); ++rank) {
    while (is_waiting(rank)) {
      const auto waited = os::Clock::now() - begin;
      if (waited > kPeersLimit) return;
      if (waited < kPeersWake) os::yield_core();
      else std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

/// Returns false if the grace period passes first.
bool have_all_ended(pool::WorkerPool& pool, failures::FailureReport& report, os::Milliseconds grace) {
  os::Patience patience(grace);
  report.look(os::Clock::now());
  const os::Milliseconds lap = std::min(os::kLap, grace);
  while (!pool.await_all_ends(lap)) {
    report.look(os::Clock::now());
    if (grace.count() == 0 || patience.is_over()) return false;
  }
  return true;
}

}  // namespace

SeenLoss describe_seen_loss(pool::WorkerPool& pool, const failures::FailureReport& report) {
  const auto released = os::Clock::now();
  const protocol::ControlBlock& control = pool.control();
  const int rank = static_cast<int>(control.header().lost.load()) - 1;
  const process::ChildEnd end = pool.await_end(rank);
  SeenLoss loss{report.describe_loss(rank, end), {}, end.wait_status.value_or(0)};
  loss.failure.master_released = released;
  await_peers_release(control, rank);
  for (int other = 0; other < control.world_size(); ++other) {
    loss.failure.peers_released.emplace_back(os::Clock::duration(control.worker(other).released_ns.load()));
  }
  loss.where = report.place_loss(loss.failure);
  return loss;
}

std::optional<Error> await_ends_at_close(pool::WorkerPool& pool, failures::FailureReport& report, std::uint64_t last,
                                         os::Milliseconds grace) {
  std::vector<RankState> states;  // filled in if a worker does not end
  if (!have_all_ended(pool, report, grace)) {
    states = report.rank_states(last);
    pool.take_stacks(states);
    pool.kill_all();
  }
  if (auto watch_failure = pool.watch_failure()) return watch_failure;
  for (int rank = 0; rank < pool.world_size(); ++rank) {
    const process::ChildEnd end = pool.await_end(rank);
    if (end.is_good()) continue;
    Failure loss = report.describe_loss(rank, end);
    loss.phase = protocol::to_string(protocol::Phase::close);
    const bool was_killed = !states.empty() && states[static_cast<std::size_t>(rank)].end.empty();
    if (was_killed) {
      loss.cause =
          process::killed_after(grace) + process::stop_suffix(states[static_cast<std::size_t>(rank)].stop_signal);
    }
    loss.ranks = std::move(states);
    return report.lost(std::move(loss), "while closing (phase close)", end.wait_status.value_or(0));
  }
  return std::nullopt;
}

}  // namespace syncrun::detail::master::session
