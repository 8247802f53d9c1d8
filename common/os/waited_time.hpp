#pragma once

// How much of the time between two checks of the clock a thread has spent waiting. Time in which the process was
// stopped (Ctrl-Z, SIGSTOP, a suspended machine) does not count. A lap is the time between two checks.

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/os/mutex.hpp"

namespace syncrun::detail::os {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// Measures the waiting time of one thread. A waiter checks the clock at least every 100 ms (kLap). If a lap is much
/// longer than that, the process was stopped, or the thread had no core. The kernel's account of the thread
/// distinguishes the two: a thread that waits for a core is runnable (/proc/thread-self/schedstat, field 2), a stopped
/// thread is not.
class WaitedTime {
 public:
  /// The longest lap of a thread that was not stopped and had a core.
  static constexpr Milliseconds kLongestLap{150};
  /// A lap in which the thread had no core counts at most this much.
  static constexpr Milliseconds kLongestHungryLap{500};

  explicit WaitedTime(Clock::time_point begin) noexcept : last_(begin), accounted_at_(begin) {}

  /// Ends a lap at `now`, and returns how much of it counts as waiting.
  Clock::duration since_last_look(Clock::time_point now) noexcept {
    const Clock::duration lap = now - last_;
    last_ = now;
    if (lap <= kLongestLap) {
      if (now - accounted_at_ >= kAccountEvery) account(now);
      return lap;
    }
    return count_long_lap(lap, now);
  }

 private:
  static constexpr Milliseconds kAccountEvery{50};  // reading the account costs microseconds

  void account(Clock::time_point now) noexcept;
  Clock::duration count_long_lap(Clock::duration lap, Clock::time_point now) noexcept;

  Clock::time_point last_;
  Clock::time_point accounted_at_;
  std::optional<std::chrono::nanoseconds> runnable_;  // at accounted_at_: time on a core and waiting for one
};

/// How long this process has been awake, that is, not stopped. One of its threads measures this: it checks the clock at
/// least every 100 ms. Other threads use the result if they check less often, because they cannot distinguish a stop
/// from their own work.
class AwakeTime {
 public:
  /// The thread that measures calls this at least every 100 ms.
  void look(Clock::time_point now) noexcept {
    const MutexLock lock(mutex_);
    if (!waited_) waited_.emplace(now);
    total_ += waited_->since_last_look(now);
    last_ = now;
  }
  /// The time awake until `now`. Any thread. Counts at most 100 ms for the time since the last call of look().
  Clock::duration until(Clock::time_point now) noexcept {
    const MutexLock lock(mutex_);
    return total_ + std::clamp<Clock::duration>(now - last_, Clock::duration::zero(), kLap);
  }

 private:
  static constexpr Milliseconds kLap{100};
  Mutex mutex_;
  std::optional<WaitedTime> waited_ SYNCRUN_GUARDED_BY(mutex_);
  Clock::duration total_ SYNCRUN_GUARDED_BY(mutex_){};
  Clock::time_point last_ SYNCRUN_GUARDED_BY(mutex_){};
};

}  // namespace syncrun::detail::os
