#pragma once

// The master's heap together with the segment that contains it. The heap hands out offsets in the segment.

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"

namespace syncrun::detail::master::pool {

/// Refers to both.
struct SegmentHeap {
  const os::Segment& segment;
  os::SharedHeap& heap;
};

}  // namespace syncrun::detail::master::pool
