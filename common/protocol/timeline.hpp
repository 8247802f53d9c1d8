#pragma once

// What a worker did and when, for profiles and traces. A Timeline is a ring of events in the segment. The thread of the
// worker that serves calls adds an event at each change of phase. The master reads the events when a command is over,
// or when the worker has died. Timelines exist only if the user requests a profile or a trace. For a rank of another
// node, the master adds the events itself (master/nodes/remote_timelines.hpp).

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace syncrun::detail::protocol {

struct TimelineEvent {
  std::uint64_t progress;  // command and phase, as progress_word makes it
  std::int64_t at_ns;      // steady clock, which all processes share
};

class Timeline {
 public:
  static constexpr std::uint64_t kEvents = std::uint64_t{1} << 14U;
  /// In place of the progress: events are missing here. The time is their number.
  static constexpr std::uint64_t kMissing = ~std::uint64_t{0};

  /// Adds an event. The worker calls it. One thread at a time.
  void add(std::uint64_t progress, std::int64_t at_ns) noexcept {
    const std::uint64_t position = written_.load(std::memory_order_relaxed);
    Slot& slot = slots_[position % kEvents];
    slot.progress.store(progress, std::memory_order_relaxed);
    slot.at_ns.store(at_ns, std::memory_order_relaxed);
    written_.store(position + 1, std::memory_order_release);
  }

  /// How many events were added so far. The master calls it.
  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }
  /// The event at a position below written(). Empty if it was overwritten. The master calls it.
  std::optional<TimelineEvent> at(std::uint64_t position) const noexcept {
    const Slot& slot = slots_[position % kEvents];
    const TimelineEvent event{slot.progress.load(std::memory_order_relaxed),
                              slot.at_ns.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);  // the event is read before the count below
    // The worker may be writing into the slot that comes next, which still contains the oldest event.
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

}  // namespace syncrun::detail::protocol
