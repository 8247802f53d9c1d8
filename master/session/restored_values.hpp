#pragma once

// Restores values of lost workers on the new workers.

#include <vector>

#include "master/calls/system_commands.hpp"
#include "master/pool/segment_heap.hpp"
#include "master/records/registry.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::session {

/// Restores variables from a peer if the master last made all copies equal, and constructs objects again. Adds to the
/// failure the names of variables that were restored, and of variables that are undefined. A variable is undefined if
/// no worker has its values, or if it may have been written only in part.
void pass_on(calls::SystemCommands& commands, const records::Registry& registry, const std::vector<int>& ranks,
             Failure& failure);

/// Notes that no variable has a copy on this rank any more. In a session on several nodes, the node of the rank learns of it
/// with its next command.
void forget_copies(pool::SegmentHeap memory, const records::Registry& registry, int rank);

}  // namespace syncrun::detail::master::session
