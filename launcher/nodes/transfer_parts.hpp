#pragma once

// The parts of a transfer that concern the ranks of one node.

#include <span>

#include "common/arrays/extents.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/node_place.hpp"
#include "common/protocol/variable_entry.hpp"

namespace syncrun::detail {

inline std::size_t bytes_of(const VariableEntry& entry, const TransferSlot& part) {
  return elements_in({part.extents.data(), entry.dimensions}) * size_of(entry.dtype);
}

/// Calls `visit(rank, variable, part)` for each variable and each rank of the command on this node that takes part.
template <class Visit>
void for_each_part(const Segment& segment, const Command& command, const NodePlace& node, Visit&& visit) {
  const auto& transfer = command.as<TransferPayload>();
  const int world_size = static_cast<int>(segment.at<const ControlHeader>(0)->world_size);
  const auto* parts = segment.at<const TransferSlot>(transfer.parts);
  for (std::uint32_t i = 0; i < transfer.variables_count; ++i, parts += world_size) {
    for (const int rank : command.ranks) {
      if (!node.has(rank) || !parts[rank].takes_part) continue;
      visit(rank, *segment.at<VariableEntry>(parts[rank].variable), parts[rank]);
    }
  }
}

}  // namespace syncrun::detail
