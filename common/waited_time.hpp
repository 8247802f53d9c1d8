#pragma once

// How much of the time between two looks at the clock a thread has spent waiting. Time in which the process was stopped
// (Ctrl-Z, SIGSTOP, a suspended machine) does not count.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

namespace syncrun::detail {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// Belongs to one thread. A waiter looks at the clock at least every 100 ms (kLap). If much more has passed, the process was stopped,
/// or the thread had no core. The kernel's account of the thread tells the two apart: a thread that waits for a core is
/// runnable (/proc/thread-self/schedstat, field 2), a stopped one is not.
class WaitedTime {
 public:
  /// The longest time between two looks of a thread that is neither stopped nor short of a core.
  static constexpr Milliseconds kLongestLap{150};
  /// What one lap of a thread without a core counts at most.
  static constexpr Milliseconds kLongestHungryLap{500};

  explicit WaitedTime(Clock::time_point begin) noexcept : last_(begin), accounted_at_(begin) {}

  /// What of the time since the last look counts.
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

/// How long this process has not been stopped, as one of its threads tells that looks at the clock at least every 100 ms. For
/// threads that look less often: they cannot tell a stop from their own work.
class AwakeTime {
 public:
  /// By the thread that tells.
  void look(Clock::time_point now) noexcept {
    const std::lock_guard lock(mutex_);
    if (!waited_) waited_.emplace(now);
    total_ += waited_->since_last_look(now);
    last_ = now;
  }
  /// By any thread. Between two looks at most 100 ms are taken for granted.
  Clock::duration until(Clock::time_point now) noexcept {
    const std::lock_guard lock(mutex_);
    return total_ + std::clamp<Clock::duration>(now - last_, Clock::duration::zero(), kLap);
  }

 private:
  static constexpr Milliseconds kLap{100};
  std::mutex mutex_;
  std::optional<WaitedTime> waited_;
  Clock::duration total_{};
  Clock::time_point last_{};
};

}  // namespace syncrun::detail
