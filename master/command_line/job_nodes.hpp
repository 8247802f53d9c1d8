#pragma once

// The part of `syncrun` in a job of several nodes. An engine has started one `syncrun` per node. The one of task 0 runs
// the program as the master, and each other one runs it as the agent of its node.

#include <optional>
#include <string>

#include "master/command_line/options.hpp"
#include "master/nodes/engine.hpp"

namespace syncrun::detail::master::command_line {

/// The job, if an engine has started this process as one of several tasks. A `syncrun` that a process of the job has
/// started is none of them. Throws Error (usage) if it does not fit to the options, or cannot
/// run. `variables` are those of the environment.
std::optional<nodes::Engine> find_job(const CommandOptions& options, const nodes::EnvironmentLookup& variables);

/// Adds what the program has to know about the job, if find_job() has found one. If a process of a job has started this
/// `syncrun`, the processes that it starts learn this too.
void add_job(EnvironmentChanges& changes, const std::optional<nodes::Engine>& job,
             const nodes::EnvironmentLookup& variables);

/// The job in a few lines, for --dry-run.
std::string describe_job(const nodes::Engine& engine);

}  // namespace syncrun::detail::master::command_line
