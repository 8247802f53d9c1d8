#pragma once

// Constructs replicated objects on workers: at first, and again on workers that replace lost ones.

#include "common/protocol/rank_set.hpp"
#include "launcher/calls/system_commands.hpp"
#include "launcher/records/records.hpp"

namespace syncrun::detail {

/// Constructs the object on these ranks. Throws the error of the constructor.
void construct_object(SystemCommands& commands, const ObjectRecord& object, const RankSet& ranks);

}  // namespace syncrun::detail
