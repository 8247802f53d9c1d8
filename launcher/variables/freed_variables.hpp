#pragma once

// Frees the variables that the program no longer uses. VariableRecord's destructor only notes them, because a
// destructor must not start a command.

#include "launcher/calls/system_commands.hpp"
#include "launcher/session/registry.hpp"

namespace syncrun::detail {

/// Publishes one command that frees the copies of all variables that have no handle any more. Does not wait for it.
void free_variables(SystemCommands& commands, Registry& registry);

}  // namespace syncrun::detail
