#include "common/os/heap_log.hpp"

#include <algorithm>
#include <map>

#include "common/os/range_set.hpp"

namespace syncrun::detail::os {

namespace {

SegmentRange range_of(const HeapChange& change) noexcept { return {change.offset, change.offset + change.bytes}; }

/// Takes changes from the newest to the oldest, and finds the parts of each that later changes have left as they are.
class LaterChanges {
 public:
  std::vector<SegmentRange> left_of(const HeapChange& change) {
    std::vector<SegmentRange> left;
    const SegmentRange range = range_of(change);
    switch (change.kind) {
      case HeapChange::Kind::freed:
        memory_.add(range, unused_);
        replace(range, left);
        break;
      case HeapChange::Kind::reserved:
        memory_.add(range, left);
        replace(range, unused_);
        break;
      case HeapChange::Kind::mirrored: replace(range, left); break;
      case HeapChange::Kind::written: written_.add(range, left); break;
      case HeapChange::Kind::rows_written: rows_.add(range, left); break;
      case HeapChange::Kind::rows_there:
        rows_.add(range, left);
        // It says nothing about the rows on other nodes.
        if (change.node != HeapChange::kAllNodes)
          std::for_each(left.begin(), left.end(), [this](const SegmentRange& part) { rows_.remove(part); });
        break;
    }
    unused_.clear();
    return left;
  }

 private:
  /// Earlier contents of the range no longer matter.
  void replace(SegmentRange range, std::vector<SegmentRange>& left) {
    use_.add(range, left);
    written_.add(range, unused_);
    rows_.add(range, unused_);
  }

  RangeSet memory_;   // was reserved or freed later
  RangeSet use_;      // was reserved, freed or mirrored later
  RangeSet written_;  // was replaced or written later
  RangeSet rows_;     // was replaced later, or its rows have changed on all nodes
  std::vector<SegmentRange> unused_;
};

}  // namespace

std::vector<HeapLog::Numbered>::const_iterator HeapLog::at(std::uint64_t number) const noexcept {
  return std::lower_bound(changes_.begin(), changes_.end(), number,
                          [](const Numbered& change, std::uint64_t wanted) { return change.number < wanted; });
}

void HeapLog::add(const HeapChange& change) {
  if (changes_.size() >= long_) {
    shorten(0);
    long_ = std::max(kLong, 2 * changes_.size());
  }
  changes_.push_back({end_, change});
  ++end_;
}

void HeapLog::take_back(HeapChange::Kind kind, std::uint64_t offset) noexcept {
  if (changes_.empty() || changes_.back().change.kind != kind || changes_.back().change.offset != offset) return;
  changes_.pop_back();
  --end_;
}

void HeapLog::forget(std::uint64_t before) noexcept { changes_.erase(changes_.begin(), at(before)); }

/// Nothing uses what was freed and not reserved again, so it does not matter when it was freed, unless the memory is
/// reserved elsewhere meanwhile: there may not be enough for both. Neighbours are joined, with the last of their numbers.
void HeapLog::shorten(std::uint64_t from) {
  const auto begin = at(from) - changes_.begin();
  LaterChanges later;
  std::vector<Numbered> shorter;
  std::map<std::uint64_t, Numbered> freed;  // by where they end
  for (auto old = changes_.end(); old != changes_.begin() + begin;) {
    --old;
    for (const SegmentRange& part : later.left_of(old->change)) {
      Numbered change{old->number, {old->change.kind, part.begin, part.count(), old->change.node}};
      if (change.change.kind == HeapChange::Kind::freed) freed.emplace(part.end, change);
      else shorter.push_back(change);
    }
  }
  std::vector<std::uint64_t> reserved;  // numbers, ascending
  for (auto change = shorter.rbegin(); change != shorter.rend(); ++change) {
    if (change->change.kind == HeapChange::Kind::reserved) reserved.push_back(change->number);
  }
  const auto reserves_between = [&reserved](std::uint64_t a, std::uint64_t b) {
    const auto next = std::lower_bound(reserved.begin(), reserved.end(), std::min(a, b));
    return next != reserved.end() && *next < std::max(a, b);
  };
  for (auto next = freed.begin(); next != freed.end(); ++next) {
    const auto& joined = next->second;
    const auto previous = freed.find(joined.change.offset);
    if (previous != freed.end() && !reserves_between(previous->second.number, joined.number)) {
      next->second = {std::max(joined.number, previous->second.number),
                      {HeapChange::Kind::freed, previous->second.change.offset,
                       joined.change.bytes + previous->second.change.bytes}};
      freed.erase(previous);
    }
  }
  for (const auto& [end, change] : freed) shorter.push_back(change);
  std::reverse(shorter.begin(), shorter.end());
  std::stable_sort(shorter.begin(), shorter.end(),
                   [](const Numbered& a, const Numbered& b) { return a.number < b.number; });
  changes_.reserve(static_cast<std::size_t>(begin) + shorter.size());  // nothing is lost if there is no memory
  changes_.resize(static_cast<std::size_t>(begin));
  changes_.insert(changes_.end(), shorter.begin(), shorter.end());
}

}  // namespace syncrun::detail::os
