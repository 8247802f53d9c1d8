#pragma once

// The part of `syncrun` in a job of several nodes. An engine has started one `syncrun` per node. The one of task 0 runs
// the program as the master, and each other one runs it as the agent of its node.

#include <optional>
#include <string>

#include "launcher/nodes/engine.hpp"
#include "launcher/syncrun/options.hpp"

namespace syncrun::detail {

/// The job, if an engine has started more than one task. Throws Error (usage) if it does not fit to the options, or cannot
/// run. `variables` are those of the environment.
std::optional<Engine> find_job(const CommandOptions& options, const EnvironmentLookup& variables);

/// Adds what the program has to know about the job.
void add_job(EnvironmentChanges& changes, const Engine& engine);

/// The job in a few lines, for --dry-run.
std::string describe_job(const Engine& engine);

}  // namespace syncrun::detail
