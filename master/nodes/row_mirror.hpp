#pragma once

// Which rows of the master's arrays another node has. So a row travels to a node once, and again only after the program
// has changed it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/os/range_set.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/node_place.hpp"

namespace syncrun::detail::master::nodes {

using os::SegmentRange;

/// The master has one for each other node. One thread uses it.
class RowMirror {
 public:
  /// Takes in a change of the master's heap.
  void note(const os::HeapChange& change);
  /// The bytes that a command reads on this node and that are not there yet, in order and without overlaps. They count as
  /// being there from now on. Calls read rows, and transfers the values of variables. Nothing else is returned: another
  /// node may be the only one that ever reads the other rows.
  std::vector<SegmentRange> take_missing(const os::Segment& segment, const protocol::Command& command,
                                         const protocol::NodePlace& node);

 private:
  void add_rows_of_call(const os::Segment& segment, const protocol::Command& command, const protocol::NodePlace& node,
                        std::vector<SegmentRange>& missing);
  void add_values_of_transfer(const os::Segment& segment, const protocol::Command& command,
                              const protocol::NodePlace& node, std::vector<SegmentRange>& missing);

  struct Array {
    std::uint64_t end = 0;
    os::RangeSet there;  // the parts that are on the node
  };
  using Arrays = std::map<std::uint64_t, Array>;  // by where they begin
  Arrays::iterator array_at(std::uint64_t offset);
  void remove_arrays(SegmentRange range);

  Arrays arrays_;
};

}  // namespace syncrun::detail::master::nodes
