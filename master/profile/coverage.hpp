#pragma once

// How long at least one call was in flight. Calls that overlap count once.

#include <cstdint>
#include <limits>
#include <vector>

namespace syncrun::detail::master::profile {

class Coverage {
 public:
  /// A call was in flight from `begin` to `end`.
  void add(std::int64_t begin_ns, std::int64_t end_ns);
  /// No call that is added later begins before this time. So what is before it needs no memory.
  void settle(std::int64_t before_ns);

  /// The time in which at least one call was in flight.
  std::int64_t covered_ns() const noexcept;
  /// The sum over all calls.
  std::int64_t sum_ns() const noexcept { return sum_ns_; }
  /// From the begin of the first call to the end of the last one.
  std::int64_t elapsed_ns() const noexcept { return sum_ns_ == 0 ? 0 : last_ns_ - first_ns_; }

 private:
  struct Interval {
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };
  std::vector<Interval> open_;  // in order, without overlaps
  std::int64_t settled_ns_ = 0;
  std::int64_t sum_ns_ = 0;
  std::int64_t first_ns_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_ns_ = 0;
};

}  // namespace syncrun::detail::master::profile
