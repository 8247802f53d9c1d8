#pragma once

// The clocks of the calls in flight, for their deadlines. Pure bookkeeping: the caller says what the ranks have done.
//
// The clock of a call counts the time that the master spends in waits while the call is the oldest unfinished one on
// each of its ranks, and what it depends on is done. It does not matter what the master waits for, or which other calls
// are in flight. Work of the master between two waits does not count. Time in which the master is stopped does not count
// either (WaitedTime). A program that polls with is_ready waits, too: at most 500 ms of the time between two polls count.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/os/waited_time.hpp"
#include "common/protocol/control_block.hpp"

namespace syncrun::detail::master::calls {

class CallClocks {
 public:
  static constexpr os::Milliseconds kLongestPollLap{500};

  /// What is in flight when a call is published.
  enum class Before : std::uint8_t { nothing, calls };

  explicit CallClocks(int world_size = 0) : busy_(static_cast<std::size_t>(world_size)) {}
  /// Called before a slot from this number on is used.
  void reserve(std::size_t slots) { slots_.resize(slots); }

  /// A command was published in this slot. `limit` 0: no limit. `before`: what is in flight already.
  void begin(std::size_t slot, os::Milliseconds limit, Before before) noexcept {
    slots_[slot] = {before == Before::nothing, limit, {}};
  }
  /// Sets the clock of the call in this slot to zero, for example after a debugger was attached.
  void restart(std::size_t slot) noexcept { slots_[slot].counted = {}; }

  /// The master has waited for `waited` since the last call of count(). `entries` has the id and the slot of each call
  /// in flight, in the order of the ids. Counts this time for each unfinished call that was the oldest on each of its
  /// ranks at the last call of count(), or when it was published. `ranks_of(entry)` gives the ranks of a call.
  /// `done_of(rank)` gives the last command that a rank has finished. `is_held_back(entry)` says whether a call has not
  /// begun, because it depends on a call of another rank. Such a call has no running clock. Returns the first call whose
  /// limit is used up.
  template <class Entries, class RanksOf, class DoneOf, class IsHeldBack>
  std::optional<std::uint64_t> count(const Entries& entries, os::Clock::duration waited, RanksOf&& ranks_of,
                                     DoneOf&& done_of, IsHeldBack&& is_held_back) {
    std::optional<std::uint64_t> expired;
    least_left_ = os::Clock::duration::max();
    busy_.assign(busy_.size(), false);
    for (const auto& entry : entries) {
      const std::uint64_t id = entry.id;
      Slot& slot = slots_[entry.slot];
      bool is_finished = true;
      bool is_oldest = true;
      for (const int rank : ranks_of(entry)) {
        char& is_busy = busy_[static_cast<std::size_t>(rank)];
        if (is_busy != 0) is_oldest = false;
        if (done_of(rank) >= id) continue;
        is_finished = false;
        is_busy = 1;
      }
      if (is_finished) continue;
      if (is_oldest && is_held_back(entry)) is_oldest = false;
      if (slot.is_oldest) slot.counted += waited;
      slot.is_oldest = is_oldest;
      if (!is_oldest || slot.limit.count() == 0) continue;
      if (slot.counted >= slot.limit && !expired) expired = id;
      least_left_ = std::min(least_left_, slot.limit - slot.counted);
    }
    return expired;
  }

  /// The program polls. Returns how much of the time since its last poll counts. `awake` is the time for which the
  /// process has not been stopped so far.
  os::Clock::duration poll(os::Clock::duration awake) noexcept {
    const auto lap = last_poll_ ? awake - *last_poll_ : os::Clock::duration::zero();
    last_poll_ = awake;
    return std::clamp<os::Clock::duration>(lap, os::Clock::duration::zero(), kLongestPollLap);
  }
  /// The master waits by itself now. The next poll counts as the first one.
  void end_polling() noexcept { last_poll_.reset(); }

  /// After count(): the time until the first of the running limits is used up.
  os::Clock::duration least_left() const noexcept { return least_left_; }

 private:
  struct Slot {
    bool is_oldest = false;  // when time was last counted
    os::Milliseconds limit{0};
    os::Clock::duration counted{};
  };
  std::vector<Slot> slots_;
  std::vector<char> busy_;  // by rank: it has not finished an older call
  os::Clock::duration least_left_ = os::Clock::duration::max();
  std::optional<os::Clock::duration> last_poll_;  // in time awake
};

}  // namespace syncrun::detail::master::calls
