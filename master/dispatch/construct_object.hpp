#pragma once

// Constructs replicated objects on workers: at first, and again on workers that replace lost ones.

#include "common/protocol/rank_set.hpp"
#include "master/calls/system_commands.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::dispatch {

/// Constructs the object on these ranks. Throws the error of the constructor.
void construct_object(calls::SystemCommands& commands, const records::ObjectRecord& object,
                      const protocol::RankSet& ranks);

}  // namespace syncrun::detail::master::dispatch
