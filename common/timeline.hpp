#pragma once

// What a worker was doing and when, for profiles and traces: a ring in the segment that the worker's serving thread writes
// at each change of phase, and the master reads when a command is over, or when the worker is gone. There is none unless
// a profile is wanted.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace syncrun::detail {

struct TimelineEvent {
  std::uint64_t progress;  // command and phase, see progress_word
  std::int64_t at_ns;      // steady clock, which is the same for all processes
};

class Timeline {
 public:
  static constexpr std::uint64_t kEvents = std::uint64_t{1} << 14U;

  /// Worker.
  void add(std::uint64_t progress) noexcept {
    const std::uint64_t position = written_.load(std::memory_order_relaxed);
    Slot& slot = slots_[position % kEvents];
    slot.progress.store(progress, std::memory_order_relaxed);
    slot.at_ns.store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    written_.store(position + 1, std::memory_order_release);
  }

  /// Master: how many there were so far.
  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }
  /// The event at a position below written(); nothing if it was overwritten.
  std::optional<TimelineEvent> at(std::uint64_t position) const noexcept {
    const Slot& slot = slots_[position % kEvents];
    const TimelineEvent event{slot.progress.load(std::memory_order_relaxed),
                              slot.at_ns.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);  // what was read was read before the count is
    // The writer may be at work on the slot that comes next.
    if (written_.load(std::memory_order_relaxed) - position >= kEvents) return std::nullopt;
    return event;
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> progress;
    std::atomic<std::int64_t> at_ns;
  };
  std::atomic<std::uint64_t> written_;
  std::array<Slot, kEvents> slots_;
};

}  // namespace syncrun::detail
