#pragma once

// The parts of transfers and collectives that concern the ranks of one node.

#include <numeric>
#include <span>

#include "common/arrays/extents.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/node_place.hpp"
#include "common/protocol/variable_entry.hpp"

namespace syncrun::detail::master::nodes {

inline std::size_t bytes_of(const protocol::VariableEntry& entry, const protocol::TransferSlot& part) {
  return arrays::elements_in({part.extents.data(), entry.dimensions}) * size_of(entry.dtype);
}

/// Calls `visit(rank, variable, part)` for each variable and each rank of the command on this node that takes part.
template <class Visit>
void for_each_part(const os::Segment& segment, const protocol::Command& command, const protocol::NodePlace& node,
                   Visit&& visit) {
  const auto& transfer = command.as<protocol::TransferPayload>();
  const int world_size = static_cast<int>(segment.at<const protocol::ControlHeader>(0)->world_size);
  const auto* parts = segment.at<const protocol::TransferSlot>(transfer.parts);
  for (std::uint32_t i = 0; i < transfer.variables_count; ++i, parts += world_size) {
    for (const int rank : node.ranks_of(command.ranks)) {
      if (parts[rank].takes_part) visit(rank, *segment.at<protocol::VariableEntry>(parts[rank].variable), parts[rank]);
    }
  }
}

/// If the result of a collective goes to the master: the memory for this rank's part of the result.
inline std::span<std::byte> part_of(const os::Segment& segment, const protocol::Command& command,
                                    const protocol::CollectiveSlot& slot, std::size_t element_bytes, int rank) {
  const auto* const lengths = segment.at<const std::int64_t>(slot.lengths);
  const int position = command.ranks.position_of(rank);
  const auto before = static_cast<std::size_t>(std::accumulate(lengths, lengths + position, std::int64_t{0}));
  const auto length = static_cast<std::size_t>(lengths[position]);
  return {segment.at(slot.to + before * element_bytes), length * element_bytes};
}

}  // namespace syncrun::detail::master::nodes
