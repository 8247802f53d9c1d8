#pragma once

// Arrays of which each node has only the rows that its ranks read: batches (Draft::push_here), and files of which each
// node has its own. Everything that would read another row is refused before it begins.

#include <span>
#include <string>

#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/node_place.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::data {

/// Throws Error (usage) if the master does not have all rows of the array.
void check_has_all_rows(const records::DataRecord& record);
/// Throws Error (usage) unless each rank of the call finds the rows of an argument that it reads on its node. `argument`
/// names it, and `slot` is its part of the command. The rows of the call are known. `nodes` are those of the session.
void check_rows_on_nodes(const records::DataRecord& record, const std::string& argument,
                         const protocol::ArgumentSlot& slot, const os::Segment& segment,
                         const protocol::CallPayload& call, const protocol::RankSet& ranks,
                         std::span<const protocol::NodePlace> nodes);

}  // namespace syncrun::detail::master::data
