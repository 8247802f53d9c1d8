#pragma once

// Running totals of what a rank has done, for metrics. They are in the segment, one RankTotals per rank, and exist only
// if metrics are requested. The thread of the worker that serves calls adds to them, and the master reads them at any
// time. For a rank of another node, the master stores what the agent has read there.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/protocol/phase.hpp"

namespace syncrun::detail::protocol {

inline constexpr std::size_t kPhaseCount = static_cast<std::size_t>(Phase::idle) + 1;

/// What is counted besides the time of phases.
enum class Count : std::uint8_t {
  calls,      // of functions, also those that have failed
  call_ns,    // from the first phase of such a call to its last
  call_rows,  // the rank's own rows
  steps,      // calls that are train steps. They, their time and their rows count as those of calls too
  step_ns,
  step_rows,
  input_bytes,  // the rows and arrays that calls and transfers have given to the rank
  collectives,
  collective_bytes,  // the sum of the sizes of the whole arrays
};
inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::collective_bytes) + 1;

/// The totals at one moment.
struct TotalsNow {
  std::array<std::int64_t, kPhaseCount> phase_ns;  // the phase that the rank is in counts up to that moment
  std::array<std::int64_t, kCounts> counts;

  std::int64_t of(Phase phase) const noexcept { return phase_ns[static_cast<std::size_t>(phase)]; }
  std::int64_t of(Count count) const noexcept { return counts[static_cast<std::size_t>(count)]; }
};

class alignas(64) RankTotals {
 public:
  /// A worker takes this place, which a lost worker may have had. The time until now counts for the phase in which that one
  /// was lost: readers have already seen some of it, and totals must not become smaller. After that, no time counts until
  /// the first phase of the new worker.
  void begin(std::int64_t now_ns) noexcept {
    // It is odd already if the other one was lost in enter().
    const std::uint64_t version = version_.load(std::memory_order_relaxed) | 1U;
    version_.store(version, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const std::int64_t since = phase_since_ns_.load(std::memory_order_relaxed);
    if (since != 0) grow(phase_ns_[phase_.load(std::memory_order_relaxed)], now_ns - since);
    phase_since_ns_.store(0, std::memory_order_relaxed);
    is_call_ = false;
    version_.store(version + 1, std::memory_order_release);
  }
  /// The worker enters a phase. `now_ns` is on the steady clock.
  void enter(Phase phase, std::int64_t now_ns) noexcept {
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // a reader of what follows sees the odd version
    const auto before = static_cast<Phase>(phase_.load(std::memory_order_relaxed));
    const std::int64_t since = phase_since_ns_.load(std::memory_order_relaxed);
    if (since != 0) grow(phase_ns_[static_cast<std::size_t>(before)], now_ns - since);
    if (since == 0 || before == Phase::idle) command_since_ns_ = now_ns;
    if (phase == Phase::idle && is_call_) end_call(now_ns);
    phase_.store(static_cast<std::uint8_t>(phase), std::memory_order_relaxed);
    phase_since_ns_.store(now_ns, std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }
  /// The worker runs a call, in which this rank has `rows` rows. The call counts when the worker is idle again.
  void note_call(std::int64_t rows, bool is_step) noexcept {
    is_call_ = true;
    is_step_ = is_step;
    call_rows_ = rows;
  }
  void add(Count count, std::int64_t amount) noexcept { grow(counts_[static_cast<std::size_t>(count)], amount); }

  std::int64_t of(Count count) const noexcept {
    return counts_[static_cast<std::size_t>(count)].load(std::memory_order_relaxed);
  }

  /// Called by any process. `now_ns` is on the steady clock.
  TotalsNow read(std::int64_t now_ns) const noexcept {
    // A worker that died within enter() leaves an odd version, until another one begins in its place.
    constexpr int kTries = 1000;
    TotalsNow totals{};
    for (int i = 0; i < kTries; ++i) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      for (std::size_t phase = 0; phase < kPhaseCount; ++phase)
        totals.phase_ns[phase] = phase_ns_[phase].load(std::memory_order_relaxed);
      for (std::size_t count = 0; count < kCounts; ++count)
        totals.counts[count] = counts_[count].load(std::memory_order_relaxed);
      const std::int64_t since = phase_since_ns_.load(std::memory_order_relaxed);
      const std::uint8_t phase = phase_.load(std::memory_order_relaxed);
      if (since != 0 && now_ns > since && phase < kPhaseCount) totals.phase_ns[phase] += now_ns - since;
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) break;
    }
    return totals;
  }
  /// Replaces the totals by those of a rank of another node. One thread at a time.
  void store(const TotalsNow& totals) noexcept {
    for (std::size_t phase = 0; phase < kPhaseCount; ++phase)
      phase_ns_[phase].store(totals.phase_ns[phase], std::memory_order_relaxed);
    for (std::size_t count = 0; count < kCounts; ++count)
      counts_[count].store(totals.counts[count], std::memory_order_relaxed);
  }

 private:
  /// There is only one writer, so this needs no atomic addition.
  static void grow(std::atomic<std::int64_t>& total, std::int64_t amount) noexcept {
    total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void end_call(std::int64_t now_ns) noexcept {
    is_call_ = false;
    add(Count::calls, 1);
    add(Count::call_ns, now_ns - command_since_ns_);
    add(Count::call_rows, call_rows_);
    if (!is_step_) return;
    add(Count::steps, 1);
    add(Count::step_ns, now_ns - command_since_ns_);
    add(Count::step_rows, call_rows_);
  }

  std::atomic<std::uint64_t> version_;        // odd while the worker is within enter()
  std::atomic<std::int64_t> phase_since_ns_;  // 0: in no phase
  std::atomic<std::uint8_t> phase_;
  // Only the worker uses these.
  bool is_call_;
  bool is_step_;
  std::int64_t call_rows_;
  std::int64_t command_since_ns_;
  std::array<std::atomic<std::int64_t>, kPhaseCount> phase_ns_;
  std::array<std::atomic<std::int64_t>, kCounts> counts_;
};

}  // namespace syncrun::detail::protocol
