#pragma once

// The limit of one wait of the master: the limits of the calls in flight, whose clocks run during the wait (see
// CallClocks).

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/os/waited_time.hpp"
#include "master/calls/command_table.hpp"

namespace syncrun::detail::master::dispatch {

class CallLimits {
 public:
  explicit CallLimits(calls::CommandTable& calls) noexcept : calls_(calls), waited_(os::Clock::now()) {
    calls_.clocks().end_polling();
  }

  bool is_over(os::Clock::time_point now) {
    expired_ = calls_.count_waited(waited_.since_last_look(now));
    return expired_.has_value();
  }
  os::Clock::duration nap(os::Clock::duration longest) const noexcept {
    return std::min(calls_.clocks().least_left(), longest);
  }
  /// The wait is over. Counts its last part, too.
  void end() { static_cast<void>(is_over(os::Clock::now())); }
  /// After is_over(): the call whose limit is used up.
  const std::optional<std::uint64_t>& expired() const noexcept { return expired_; }

 private:
  calls::CommandTable& calls_;
  os::WaitedTime waited_;
  std::optional<std::uint64_t> expired_;
};

}  // namespace syncrun::detail::master::dispatch
