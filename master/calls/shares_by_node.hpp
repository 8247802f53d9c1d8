#pragma once

// How the rows of a call are divided if each node has only some of them: each rank gets rows of its node.

#include <cstdint>
#include <span>
#include <string>

#include "common/arrays/row_range.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/node_place.hpp"
#include "common/protocol/rank_set.hpp"
#include "master/calls/row_weights.hpp"

namespace syncrun::detail::master::calls {

/// The rows of an argument that are on the nodes, by node. They follow each other.
struct RowsOnNodes {
  std::string argument;  // for messages
  std::span<const arrays::RowRange> there;
  std::span<const protocol::NodePlace> nodes;
};

/// Divides the rows that a call selects among its ranks, first by node, and then within each node as RowWeights::divide()
/// does. Writes what that function writes. Throws Error (usage) if no rank can get rows of a node, because the call has none
/// there, or only ranks of weight 0; or if an index list does not name the rows of the first node first, then those of the
/// next one, and so on.
void divide_by_node(const RowsOnNodes& rows, const protocol::RowsSlot& batch, const os::Segment& segment,
                    const protocol::RankSet& ranks, const RowWeights& weights, std::span<std::int64_t> begins);

}  // namespace syncrun::detail::master::calls
