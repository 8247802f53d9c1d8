#include "common/os/waited_time.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "common/os/kernel_file.hpp"

namespace syncrun::detail::os {

namespace {

/// How long this thread has been on a core or has waited for one. Empty if the kernel keeps no account.
std::optional<std::chrono::nanoseconds> runnable_time() noexcept {
  std::array<char, 128> text{};
  if (read_kernel_file("/proc/thread-self/schedstat", {text.data(), text.size() - 1}).empty()) return std::nullopt;
  unsigned long long on_core = 0;
  unsigned long long waiting = 0;
  if (std::sscanf(text.data(), "%llu %llu", &on_core, &waiting) != 2) return std::nullopt;
  return std::chrono::nanoseconds(on_core + waiting);
}

}  // namespace

void WaitedTime::account(Clock::time_point now) noexcept {
  runnable_ = runnable_time();
  accounted_at_ = now;
}

/// If there is no earlier account to compare with, this lap does not count. The next lap has an account to compare
/// with. If the kernel keeps no account at all, this lap counts as much as the longest undisturbed lap.
Clock::duration WaitedTime::count_long_lap(Clock::duration lap, Clock::time_point now) noexcept {
  const auto before = runnable_;
  account(now);
  if (!runnable_) return std::min<Clock::duration>(lap, kLongestLap);
  if (!before) return Clock::duration::zero();
  const bool had_no_core = *runnable_ - *before >= lap / 4;
  return had_no_core ? std::min<Clock::duration>(lap, kLongestHungryLap) : Clock::duration::zero();
}

}  // namespace syncrun::detail::os
