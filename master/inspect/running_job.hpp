#pragma once

// Finds the jobs that run on this machine. A worker shows in the environment with which it was started who its master is,
// and which descriptor of the master has the shared memory of their session.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace syncrun::detail::master::inspect {

struct RunningJob {
  pid_t master = -1;     ///< The program, or the agent of a node.
  pid_t supervisor = 0;  ///< Its `syncrun`. 0 if the program runs without it.
  int segment_fd = -1;   ///< A descriptor of the master.
  std::string command;   ///< The program and its arguments.
};

/// The jobs of this user that have workers, by the pid of the master.
std::vector<RunningJob> find_jobs();

/// The only job, or the one with this pid: of its `syncrun`, of its program, or of the agent of this node. Throws Error
/// (usage) with a list of all jobs if that is not clear.
RunningJob choose_job(std::optional<int> pid);

/// A variable of the environment with which a process was started. Empty if it is not set or cannot be read.
std::string variable_of(pid_t pid, const std::string& name);

}  // namespace syncrun::detail::master::inspect
