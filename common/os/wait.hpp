#pragma once

// Waiting across processes: a doorbell on which processes sleep, a policy that says how long a waiter stays awake, and
// a limit on the wait (Patience).
//
// Sleeping and waking use a Dekker-style handshake. The waiter increments the number of sleepers and then checks the
// condition again. The ringer makes the condition true and then reads the number of sleepers. All four accesses are
// seq_cst, so that at least one of the two sees what the other has written. On x86-64, this costs the ringer one
// exchange on its own cache line.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/os/waited_time.hpp"

namespace syncrun::detail::os {

/// A place in shared memory where processes sleep until another process rings. Zero-initialised memory is a valid
/// doorbell.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  /// Wakes all sleepers. Makes no system call if there are none. Before the call, the caller makes their condition true
  /// with a seq_cst store.
  void ring() noexcept {
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }
  /// As ring(), after release stores. The exchange orders them before the look at the number of sleepers: a waiter that
  /// counts itself later reads from this exchange, so it sees the stores.
  void ring_after_release() noexcept {
    if (sleepers.fetch_add(0, std::memory_order_seq_cst) != 0) wake();
  }
  /// Wakes all sleepers without a look at their number. Used after a death, because a dead process may have left the
  /// number wrong.
  void wake() noexcept;
  /// Sleeps until `rings` is no longer `seen`, at most for `limit`. May also return earlier, for example after a
  /// signal.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept;
};

/// A limit on the waits of one thread. Time in which this process was stopped (Ctrl-Z, a debugger) does not count.
class Patience {
 public:
  static constexpr Milliseconds kLongestLimit = std::chrono::hours(24 * 365);

  /// No limit if `limit` is zero or above kLongestLimit.
  explicit Patience(Milliseconds limit) noexcept
      : endless_(limit.count() == 0 || limit > kLongestLimit),
        left_(endless_ ? Milliseconds(0) : limit),
        waited_(Clock::now()) {}
  /// A limit that is used up from the start: the waiter checks its condition, but does not wait.
  static Patience none() noexcept {
    Patience patience{Milliseconds(1)};
    patience.left_ = {};
    return patience;
  }
  /// How long to sleep before the next check of the clock: at most `longest`, and not beyond the limit.
  Clock::duration nap(Clock::duration longest) const noexcept {
    return endless_ ? longest : std::clamp(left_, Clock::duration::zero(), longest);
  }
  /// Reads the clock. True once the limit is used up.
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

/// Two limits of one wait. The wait is over as soon as one of them is.
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

/// How a waiter waits before it sleeps. If there is a core for every process, the waiter first spins, so that a call
/// costs only cache misses. Then it yields the core between checks, because other programs may be using the machine. If
/// there are more processes than cores, it yields from the start, because the process it waits for may need this core.
/// In both cases the waiter sleeps at last, so that an idle session uses no CPU.
///
/// A waiter spins only as long as that helps. If its last four spins saw nothing, it may share its core with the
/// process it waits for. Then it yields at once, and spins only in every 32nd wait. Each waiter has a policy of its
/// own.
struct WaitPolicy {
  std::chrono::nanoseconds spin_for{0};
  std::chrono::nanoseconds awake_for{std::chrono::microseconds(200)};
  int spins_left = kSpinsInVain;  // how many spins may still see nothing before the waiter stops spinning
  int waits = 0;                  // waits that began when spins_left was 0
  bool has_yielded = false;       // in the last wait, which then took longer than a system call

  static constexpr int kSpinsInVain = 4;
  static constexpr int kTryEvery = 32;

  bool shall_spin() noexcept { return spin_for.count() != 0 && (spins_left > 0 || ++waits % kTryEvery == 0); }
  void note_useful_spin() noexcept { spins_left = kSpinsInVain; }
  void note_vain_spin() noexcept {
    if (spins_left > 0) --spins_left;
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
  /// For a process that also waits for other nodes. Their messages wake nobody, so a sleep would end only when its time is
  /// over. `processes` are those of this node.
  static constexpr WaitPolicy for_nodes(int processes, int cores) noexcept {
    WaitPolicy policy = for_processes(processes, cores);
    policy.awake_for = std::max<std::chrono::nanoseconds>(policy.awake_for, std::chrono::milliseconds(1));
    return policy;
  }
};

/// The number of cores that this process may use: those that it is bound to, or fewer if the control group has a quota of
/// CPU time.
int usable_cores() noexcept;
/// The number of cores of this machine that are switched on.
int machine_cores() noexcept;

/// The longest sleep of a waiter before it checks its conditions again.
inline constexpr Milliseconds kLap{100};

enum class Woken : std::uint8_t { ready, interrupted, expired };

void pause_briefly() noexcept;
void yield_core() noexcept;

/// Blocks until `ready()` or `interrupted()` is true, or `patience` is over. `patience` is a Patience, or has its
/// is_over and nap. The waiter checks the two conditions often, so they must be cheap. Another process must write what
/// they read with seq_cst before it rings `bell`. `on_lap(now)` is called about once per kLap, for the first time after
/// one kLap. So shorter waits have no cost from it. Returns ready if both conditions are true.
template <class Limit, class Ready, class Interrupted, class OnLap>
Woken wait_until(Doorbell& bell, WaitPolicy& policy, Limit& patience, Ready&& ready, Interrupted&& interrupted,
                 OnLap&& on_lap) {
  constexpr int kLooksPerClock = 32;
  policy.has_yielded = false;
  if (ready()) return Woken::ready;
  auto now = Clock::now();
  bool spins = policy.shall_spin();
  const auto spin_until = now + policy.spin_for;
  const auto awake_until = now + policy.awake_for;
  auto lap_over = now + kLap;
  for (;;) {
    if (spins && now >= spin_until) {
      policy.note_vain_spin();
      spins = false;
    }
    if (spins) {
      for (int look = 0; look < kLooksPerClock; ++look) {
        pause_briefly();
        if (!ready()) continue;
        policy.note_useful_spin();
        return Woken::ready;
      }
    } else {
      policy.has_yielded = true;
      yield_core();
      if (ready()) return Woken::ready;
    }
    // `ready` takes precedence. If all ranks have arrived and one of them fails right after that, the wait has
    // succeeded.
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

}  // namespace syncrun::detail::os
