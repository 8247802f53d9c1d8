#pragma once

// The clocks of the calls in flight, for their deadlines. Pure bookkeeping: what ranks have done is handed in.
//
// A call's clock is the time that the master spent in waits while the call was the oldest unfinished one on each of its
// ranks: whatever the master waits for, and whoever else is in flight. Host work between two waits does not count, nor does
// time in which the master was stopped (WaitedTime). A program that polls with is_ready waits, too: of the time between two
// polls, at most 500 ms count.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/control_block.hpp"
#include "common/waited_time.hpp"

namespace syncrun::detail {

class CallClocks {
 public:
  static constexpr Milliseconds kLongestPollLap{500};

  explicit CallClocks(int world_size) : busy_(static_cast<std::size_t>(world_size)) {}

  /// A command was published. `limit` 0: none. `is_alone`: nothing else is in flight.
  void begin(std::uint64_t id, Milliseconds limit, bool is_alone) noexcept {
    slots_[id % kRingSize] = {is_alone, limit, {}};
  }
  /// Its limit begins anew, as after a debugger had it.
  void restart(std::uint64_t id) noexcept { slots_[id % kRingSize].counted = {}; }

  /// The master has waited for `waited` since it last said so: counts that for the unfinished calls among `first` to `last`
  /// that were the oldest of their ranks at its beginning. `ranks_of(id)` are the ranks of a call. `done_of(rank)` is the last
  /// command that a rank is done with.
  /// Returns the first call whose limit is used up.
  template <class RanksOf, class DoneOf>
  std::optional<std::uint64_t> count(std::uint64_t first, std::uint64_t last, Clock::duration waited,
                                     RanksOf&& ranks_of, DoneOf&& done_of) {
    std::optional<std::uint64_t> expired;
    least_left_ = Clock::duration::max();
    busy_.assign(busy_.size(), false);
    for (std::uint64_t id = first; id <= last; ++id) {
      Slot& slot = slots_[id % kRingSize];
      bool is_finished = true;
      bool is_oldest = true;
      for (const int rank : ranks_of(id)) {
        char& is_busy = busy_[static_cast<std::size_t>(rank)];
        if (is_busy != 0) is_oldest = false;
        if (done_of(rank) >= id) continue;
        is_finished = false;
        is_busy = 1;
      }
      if (is_finished) continue;
      if (slot.is_oldest) slot.counted += waited;
      slot.is_oldest = is_oldest;
      if (!is_oldest || slot.limit.count() == 0) continue;
      if (slot.counted >= slot.limit && !expired) expired = id;
      least_left_ = std::min(least_left_, slot.limit - slot.counted);
    }
    return expired;
  }

  /// The program polls: how much of the time since its last poll counts. `awake`: for how long the process has not been
  /// stopped so far.
  Clock::duration poll(Clock::duration awake) noexcept {
    const auto lap = last_poll_ ? awake - *last_poll_ : Clock::duration::zero();
    last_poll_ = awake;
    return std::clamp<Clock::duration>(lap, Clock::duration::zero(), kLongestPollLap);
  }
  /// The master waits itself: what comes next is a first poll.
  void end_polling() noexcept { last_poll_.reset(); }

  /// After count(): how long until the first of the limits that run is used up.
  Clock::duration least_left() const noexcept { return least_left_; }

 private:
  struct Slot {
    bool is_oldest = false;  // when time was last counted
    Milliseconds limit{0};
    Clock::duration counted{};
  };
  std::array<Slot, kRingSize> slots_;
  std::vector<char> busy_;  // by rank: it has not come to the end of an older call
  Clock::duration least_left_ = Clock::duration::max();
  std::optional<Clock::duration> last_poll_;  // in time awake
};

}  // namespace syncrun::detail
