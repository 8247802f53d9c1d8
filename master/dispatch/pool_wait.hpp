#pragma once

// Waits of the master for what its workers and other processes of the session do.

#include <algorithm>

#include "common/os/wait.hpp"
#include "master/pool/worker_pool.hpp"

namespace syncrun::detail::master::dispatch {

/// The limits of a wait that handles what comes from other nodes. Nobody rings for that, so its sleeps are short.
template <class Limits>
struct ShortNaps {
  Limits& limits;
  pool::WorkerPool& pool;
  pool::WorkerPool::Awaited awaited;
  bool is_over(os::Clock::time_point now) const { return limits.is_over(now); }
  os::Clock::duration nap(os::Clock::duration longest) const {
    return limits.nap(std::min<os::Clock::duration>(longest, pool.longest_nap(awaited)));
  }
};

/// As os::wait_until() at the doorbell of the master. Also handles what comes from other nodes.
template <class Limits, class Ready, class Interrupted, class... OnLap>
os::Woken wait_until(pool::WorkerPool& pool, pool::WorkerPool::Awaited awaited, os::WaitPolicy& policy, Limits& limits,
                     Ready&& ready, Interrupted&& interrupted, OnLap&&... on_lap) {
  os::Doorbell& bell = pool.control().header().to_master;
  const ShortNaps<Limits> naps{limits, pool, awaited};
  const auto progress = [&] { return pool.progress(), interrupted(); };
  return os::wait_until(bell, policy, naps, ready, progress, on_lap...);
}

}  // namespace syncrun::detail::master::dispatch
