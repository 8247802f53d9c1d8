#pragma once

// The master's heap together with the segment that contains it. The heap hands out offsets in the segment.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"

namespace syncrun::detail::master::pool {

/// Refers to both.
struct SegmentHeap {
  const os::Segment& segment;
  os::SharedHeap& heap;

  /// Allocates memory for one command. `temporaries` is the list of what the command leaves to be freed. Throws Error
  /// (system) with the purpose `what`.
  std::uint64_t allocate(std::size_t bytes, const char* what, std::vector<std::uint64_t>& temporaries) const {
    return temporaries.emplace_back(heap.allocate(bytes, os::SharedHeap::Contents::any, what));
  }
};

}  // namespace syncrun::detail::master::pool
