#pragma once

// The role of this process: a program starts as a master, and serve_if_worker may make it a worker or an agent. The source file
// also contains syncrun::restarts, which says how often the program was restarted.

#include <optional>

namespace syncrun::detail::protocol {

/// True if this process serves calls, that is, if it is a worker and not a master. Any thread.
bool is_in_worker() noexcept;

/// Makes is_in_worker() true for the rest of the process.
void become_worker() noexcept;

/// What this process does if it is the agent of a node (master/nodes/job.hpp). It returns the exit code, or nothing if the
/// process is no agent. Throws Error (usage).
using AgentRoleFunction = std::optional<int> (*)();
/// master/ sets it before main(). worker/ cannot call it directly, because the two use nothing of each other.
void set_agent_role(AgentRoleFunction function) noexcept;
std::optional<int> serve_if_agent();

}  // namespace syncrun::detail::protocol
