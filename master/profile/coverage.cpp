#include "master/profile/coverage.hpp"

#include <algorithm>

namespace syncrun::detail::master::profile {

void Coverage::add(std::int64_t begin_ns, std::int64_t end_ns) {
  sum_ns_ += end_ns - begin_ns;
  first_ns_ = std::min(first_ns_, begin_ns);
  last_ns_ = std::max(last_ns_, end_ns);
  const auto first = std::ranges::find_if(open_, [&](const Interval& at) { return at.end_ns >= begin_ns; });
  auto last = first;
  Interval merged{begin_ns, end_ns};
  for (; last != open_.end() && last->begin_ns <= end_ns; ++last) {
    merged.begin_ns = std::min(merged.begin_ns, last->begin_ns);
    merged.end_ns = std::max(merged.end_ns, last->end_ns);
  }
  open_.insert(open_.erase(first, last), merged);
}

void Coverage::settle(std::int64_t before_ns) {
  const auto end = std::ranges::find_if(open_, [&](const Interval& at) { return at.end_ns >= before_ns; });
  for (auto at = open_.begin(); at != end; ++at) settled_ns_ += at->end_ns - at->begin_ns;
  open_.erase(open_.begin(), end);
}

std::int64_t Coverage::covered_ns() const noexcept {
  std::int64_t covered = settled_ns_;
  for (const Interval& at : open_) covered += at.end_ns - at.begin_ns;
  return covered;
}

}  // namespace syncrun::detail::master::profile
