#pragma once

// The job of several nodes to which this process belongs. `syncrun` says so in the environment. The first use joins the
// other nodes.

#include <optional>
#include <string>

#include "common/os/wait.hpp"
#include "master/nodes/engine.hpp"
#include "master/nodes/node_group.hpp"

namespace syncrun::detail::master::nodes {

/// What `syncrun` has said about the job.
struct JobPlace {
  int node = 0;  // the number of this node
  Engine engine;
};

/// Reads and unsets the variable, so that programs that this one starts do not believe that they belong to the job.
/// Returns nothing if the job has one node. Throws Error (usage). Called when the program begins.
std::optional<JobPlace> take_job_place();

/// The nodes of the job, for the master. Null if there is only this one. The first call joins them: it waits until all
/// agents have said what they are, for at most `limit`, and checks that they fit. At the end of the process, the other
/// nodes are told its exit code. Throws Error (usage, system, timeout).
NodeGroup* job_nodes(os::Milliseconds limit);

/// The program has failed for this reason. The other nodes are told its first line at the end of the process.
void tell_nodes(const std::string& verdict);

/// Joins the other nodes of the job, for an agent.
std::unique_ptr<NodeGroup> join_job(const JobPlace& place);

}  // namespace syncrun::detail::master::nodes
