#pragma once

// Frees the variables that the program no longer uses. VariableRecord's destructor only notes them, because a
// destructor must not start a command.

#include "master/calls/system_commands.hpp"
#include "master/records/registry.hpp"

namespace syncrun::detail::master::session {

/// Publishes one command that frees the copies of the variables that have no handle any more. Does not wait: if a rank
/// has a full inbox, variables with a copy there stay for later, and others until there are many.
void free_variables(calls::SystemCommands& commands, records::Registry& registry);

}  // namespace syncrun::detail::master::session
