#pragma once

// Makes the result of a call from the outboxes of its ranks.

#include <cstdint>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::dispatch {

class OutputCollector {
 public:
  OutputCollector() = default;
  OutputCollector(const os::Segment& segment, protocol::ControlBlock control) : segment_(&segment), control_(control) {}

  /// Writes the outputs of a call that succeeded on all of its ranks into `result`. Throws Error (function) if ranks
  /// disagree about a shape.
  void collect(const protocol::Command& command, const records::FunctionRecord& function, CallResult& result);

 private:
  void take_ranks(const protocol::Command& command);
  void collect_array(const protocol::Command& command, const records::FunctionRecord& function, std::size_t index,
                     RawOutput& to);
  void take_sources(const protocol::Command& command, std::size_t index);
  void gather(const protocol::Command& command, std::size_t index, RawOutput& to);

  const os::Segment* segment_ = nullptr;
  protocol::ControlBlock control_;
  // Used again for every call.
  std::vector<int> ranks_;  // the ranks that had rows
  std::vector<const void*> sources_;
  std::vector<double> weights_;
  std::vector<double> weights_of_sources_;
};

}  // namespace syncrun::detail::master::dispatch
