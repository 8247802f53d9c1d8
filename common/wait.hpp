#pragma once

// Waiting across processes: a doorbell to sleep on, a policy that says how eagerly to look, and patience that ends.
//
// The protocol between a waiter and a ringer is Dekker's: the waiter counts itself as a sleeper and then looks at the
// condition again; the ringer makes the condition true and then looks for sleepers. All four accesses are seq_cst, so
// that one of the two sees the other; on x86-64 that costs one exchange on the ringer's own cache line.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/waited_time.hpp"

namespace syncrun::detail {

/// A place in shared memory to sleep at until somebody rings. Zero-initialised memory is a valid doorbell.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  /// Wakes all sleepers, if there are any. The caller has just made their condition true with a seq_cst store.
  void ring() noexcept {
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }
  /// Wakes all sleepers whatever the count says: after a death, when counts mean nothing.
  void wake() noexcept;
  /// Sleeps until a ring after `seen`, or `limit`.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept;
};

/// A limit on waiting, for one thread. Time in which this process was stopped (Ctrl-Z, a debugger) does not count.
class Patience {
 public:
  static constexpr Milliseconds kLongestLimit = std::chrono::hours(24 * 365);

  /// Zero, or more than can be counted: endless.
  explicit Patience(Milliseconds limit) noexcept
      : endless_(limit.count() == 0 || limit > kLongestLimit),
        left_(endless_ ? Milliseconds(0) : limit),
        waited_(Clock::now()) {}
  /// Used up from the start: whoever has it looks, and does not wait.
  static Patience none() noexcept {
    Patience patience{Milliseconds(1)};
    patience.left_ = {};
    return patience;
  }
  /// How long to sleep until the next look at the clock: at most `longest`, and not beyond the limit.
  Clock::duration nap(Clock::duration longest) const noexcept {
    return endless_ ? longest : std::clamp(left_, Clock::duration::zero(), longest);
  }
  /// Looks at the clock; true once the limit is used up.
  bool is_over() noexcept { return is_over(Clock::now()); }
  bool is_over(Clock::time_point now) noexcept {
    if (endless_) return false;
    left_ -= waited_.since_last_look(now);
    return left_.count() <= 0;
  }

 private:
  bool endless_;
  Clock::duration left_;
  WaitedTime waited_;
};

/// Two limits of one wait: over as soon as one of them is.
template <class First, class Second>
struct EitherLimit {
  First& first;
  Second& second;
  bool is_over(Clock::time_point now) {
    const bool is_first_over = first.is_over(now);
    return second.is_over(now) || is_first_over;
  }
  Clock::duration nap(Clock::duration longest) const { return std::min(first.nap(longest), second.nap(longest)); }
};

/// How to wait before going to sleep. With a core for every process: spin, so that a call costs cache misses only, and
/// yield now and then after a while, since somebody else may be using the machine. With more processes than cores:
/// yield, since the one waited for may need this very core. Either ends in sleep, so that an idle session uses no CPU.
///
/// Spinning is kept up only while it pays: a waiter whose last spins saw nothing may share its core with the one it waits
/// for, and yields at once, but for a try now and then. One policy belongs to one waiter.
struct WaitPolicy {
  std::chrono::nanoseconds spin_for{0};
  std::chrono::nanoseconds awake_for{std::chrono::microseconds(200)};
  int spins_left = kSpinsInVain;  // that may see nothing before spinning is given up
  int waits = 0;                  // since then

  static constexpr int kSpinsInVain = 4;
  static constexpr int kTryEvery = 32;

  bool shall_spin() noexcept { return spin_for.count() != 0 && (spins_left > 0 || ++waits % kTryEvery == 0); }
  void spun(bool has_seen) noexcept {
    if (has_seen) spins_left = kSpinsInVain;
    else if (spins_left > 0) --spins_left;
  }

  static constexpr WaitPolicy spinning() noexcept {
    WaitPolicy policy;
    policy.spin_for = std::chrono::microseconds(3);
    policy.awake_for = std::chrono::milliseconds(10);
    return policy;
  }
  static constexpr WaitPolicy yielding() noexcept { return {}; }
  static constexpr WaitPolicy for_processes(int processes, int cores) noexcept {
    return processes <= cores ? spinning() : yielding();
  }
};

/// Cores this process may use.
int usable_cores() noexcept;

/// How long a sleeper sleeps before it looks around.
inline constexpr Milliseconds kLap{100};

enum class Woken : std::uint8_t { ready, interrupted, expired };

void pause_briefly() noexcept;
void yield_core() noexcept;

/// Blocks until `ready()`, `interrupted()` or the end of patience, which is a Patience or has its is_over and nap. The two
/// conditions are looked at often and must be cheap; what they read is written with seq_cst before `bell` is rung. `on_lap(now)` is called about once per kLap, from the first on: what
/// is over by then does not pay for it.
template <class Limit, class Ready, class Interrupted, class OnLap>
Woken wait_until(Doorbell& bell, WaitPolicy& policy, Limit& patience, Ready&& ready, Interrupted&& interrupted,
                 OnLap&& on_lap) {
  constexpr int kLooksPerClock = 32;
  if (ready()) return Woken::ready;
  auto now = Clock::now();
  bool spins = policy.shall_spin();
  const auto spin_until = now + policy.spin_for;
  const auto awake_until = now + policy.awake_for;
  auto lap_over = now + kLap;
  for (;;) {
    if (spins && now >= spin_until) {
      policy.spun(false);
      spins = false;
    }
    if (spins) {
      for (int look = 0; look < kLooksPerClock; ++look) {
        pause_briefly();
        if (!ready()) continue;
        policy.spun(true);
        return Woken::ready;
      }
    } else {
      yield_core();
      if (ready()) return Woken::ready;
    }
    // What all have come to counts also if one of them failed right after: then it was over for all of them.
    if (interrupted()) return ready() ? Woken::ready : Woken::interrupted;
    now = Clock::now();
    if (now < awake_until) continue;
    if (now >= lap_over) {
      on_lap(now);
      lap_over = now + kLap;
    }
    if (patience.is_over(now)) return Woken::expired;

    const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!ready() && !interrupted()) bell.sleep(seen, patience.nap(kLap));
    bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (ready()) return Woken::ready;
  }
}

template <class Limit, class Ready, class Interrupted>
Woken wait_until(Doorbell& bell, WaitPolicy& policy, Limit& patience, Ready&& ready, Interrupted&& interrupted) {
  return wait_until(bell, policy, patience, ready, interrupted, [](Clock::time_point) {});
}

}  // namespace syncrun::detail
