#pragma once

// Results of a call, put together from what its ranks say in their outboxes.

#include <cstdint>
#include <vector>

#include "common/control_block.hpp"
#include "common/segment.hpp"
#include "launcher/records.hpp"

namespace syncrun::detail {

class OutputCollector {
 public:
  OutputCollector() = default;
  OutputCollector(const Segment& segment, ControlBlock control) : segment_(&segment), control_(control) {}

  /// Of a call that came through on all of its ranks. Throws Error (function) where ranks disagree in a shape.
  void collect(std::uint64_t id, const FunctionRecord& function, CallResult& result);

 private:
  void take_ranks(std::uint64_t id);
  void collect_array(std::uint64_t id, const FunctionRecord& function, std::size_t index, RawOutput& to);
  void gather(std::uint64_t id, std::size_t index, RawOutput& to);

  const Segment* segment_ = nullptr;
  ControlBlock control_;
  // Reused for every call.
  std::vector<int> ranks_;  // that had rows
  std::vector<const void*> sources_;
  std::vector<double> weights_;
};

}  // namespace syncrun::detail
