#pragma once

// A set of bytes of the segment.

#include <cstdint>
#include <map>
#include <vector>

namespace syncrun::detail::os {

/// Bytes [begin, end) of the segment.
struct SegmentRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t count() const noexcept { return end - begin; }
  friend bool operator==(const SegmentRange&, const SegmentRange&) = default;
};

class RangeSet {
 public:
  /// Adds a range. Appends the parts of it that were not in the set to `new_parts`, in order.
  void add(SegmentRange range, std::vector<SegmentRange>& new_parts);
  void remove(SegmentRange range);

 private:
  std::map<std::uint64_t, std::uint64_t> parts_;  // begin and end of each; they do not touch
};

}  // namespace syncrun::detail::os
