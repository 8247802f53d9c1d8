#pragma once

// Makes the result of a call from the outboxes of its ranks.

#include <cstdint>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "launcher/records/records.hpp"

namespace syncrun::detail {

class OutputCollector {
 public:
  OutputCollector() = default;
  OutputCollector(const Segment& segment, ControlBlock control) : segment_(&segment), control_(control) {}

  /// Writes the outputs of a call that succeeded on all of its ranks into `result`. Throws Error (function) if ranks
  /// disagree about a shape.
  void collect(const Command& command, const FunctionRecord& function, CallResult& result);

 private:
  void take_ranks(const Command& command);
  void collect_array(const Command& command, const FunctionRecord& function, std::size_t index, RawOutput& to);
  void gather(const Command& command, std::size_t index, RawOutput& to);

  const Segment* segment_ = nullptr;
  ControlBlock control_;
  // Used again for every call.
  std::vector<int> ranks_;  // the ranks that had rows
  std::vector<const void*> sources_;
  std::vector<double> weights_;
};

}  // namespace syncrun::detail
