#include "common/os/range_set.hpp"

#include <algorithm>
#include <iterator>

namespace syncrun::detail::os {

void RangeSet::add(SegmentRange range, std::vector<SegmentRange>& new_parts) {
  if (range.count() == 0) return;
  auto part = parts_.upper_bound(range.begin);
  if (part != parts_.begin() && std::prev(part)->second >= range.begin) --part;  // it touches the range
  SegmentRange whole = range;
  std::uint64_t next = range.begin;  // where the part that is still to be looked at begins
  const auto add_new = [&](std::uint64_t end) {
    if (next < end) new_parts.push_back({next, end});
  };
  while (part != parts_.end() && part->first <= range.end) {
    add_new(part->first);
    next = std::max(next, part->second);
    whole = {std::min(whole.begin, part->first), std::max(whole.end, part->second)};
    part = parts_.erase(part);
  }
  add_new(range.end);
  parts_.emplace(whole.begin, whole.end);
}

void RangeSet::remove(SegmentRange range) {
  auto part = parts_.upper_bound(range.begin);
  if (part != parts_.begin() && std::prev(part)->second > range.begin) --part;
  while (part != parts_.end() && part->first < range.end) {
    const SegmentRange old{part->first, part->second};
    part = parts_.erase(part);
    if (old.begin < range.begin) parts_.emplace(old.begin, range.begin);
    if (old.end > range.end) part = parts_.emplace(range.end, old.end).first;
  }
}

}  // namespace syncrun::detail::os
