#pragma once

// Frees the variables that the program no longer uses. VariableRecord's destructor only notes them, because a
// destructor must not start a command.

#include "launcher/calls/system_commands.hpp"
#include "launcher/records/registry.hpp"

namespace syncrun::detail {

/// Publishes one command that frees the copies of the variables that have no handle any more. Does not wait: if a rank
/// has a full inbox, variables with a copy there stay for later, and others until there are many.
void free_variables(SystemCommands& commands, Registry& registry);

}  // namespace syncrun::detail
