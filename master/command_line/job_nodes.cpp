#include "master/command_line/job_nodes.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "common/os/environment.hpp"
#include "common/os/interfaces.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// The version of the MPI, or why it cannot be used.
std::string describe_transport(nodes::Mpi mpi) {
  try {
    return nodes::load_mpi_transport(mpi)->description();
  } catch (const Error& error) {
    return error.what();
  }
}

/// A node is a machine together with a UTS namespace. If this process has a namespace of its own, it is a node of its own
/// too (unshare --uts, for tests).
bool has_own_host_name() {
  struct stat own {};
  struct stat parents {};
  return ::stat("/proc/self/ns/uts", &own) == 0 &&
         ::stat(("/proc/" + std::to_string(::getppid()) + "/ns/uts").c_str(), &parents) == 0 &&
         own.st_ino != parents.st_ino;
}

/// The socket that connects this process with its engine. Empty if no such socket exists.
std::optional<std::string> socket_to_engine(const char* number) {
  const auto fd = environment::whole_number(number);
  struct stat socket {};
  if (!fd || *fd < 0 || *fd > INT_MAX || ::fstat(static_cast<int>(*fd), &socket) != 0 || !S_ISSOCK(socket.st_mode)) {
    return std::nullopt;
  }
  return "socket " + std::to_string(socket.st_ino);
}

/// What distinguishes the engine's job from all others: its name, or else the connection to the engine. Empty if it has
/// no name and this process is not connected with the engine.
std::optional<std::string> id_of_job(const nodes::Engine& engine, const nodes::EnvironmentLookup& variables) {
  const std::string start = std::string(nodes::to_string(engine.kind)) + ", ";
  if (!engine.job.empty()) return start + engine.job;
  if (const char* const port = variables("PMI_PORT")) return start + port;
  const char* const fd = variables("PMI_FD");
  const auto socket = fd == nullptr ? std::nullopt : socket_to_engine(fd);
  return socket ? std::optional(start + *socket) : std::nullopt;
}

/// Whether a process of the engine's job has started this `syncrun`, and not the engine itself. Then the variables of the
/// engine are inherited. SYNCRUN_IN_JOB can be inherited from a process of another job too, for example by sbatch.
bool is_inside_job(const nodes::Engine& engine, const nodes::EnvironmentLookup& variables) {
  const char* const outer = variables(environment::kInJob);
  if (outer == nullptr || !engine.has_others()) return false;
  const auto own = id_of_job(engine, variables);
  return !own || *own == outer;
}

}  // namespace

std::optional<nodes::Engine> find_job(const CommandOptions& options, const nodes::EnvironmentLookup& variables) {
  nodes::Engine engine = nodes::find_engine(variables);
  if (is_inside_job(engine, variables)) engine = {};
  // First, because two tasks on a node explain why there are more tasks than nodes.
  if (engine.tasks_here.value_or(1) == 1 || !has_own_host_name()) nodes::check_start(engine);
  if (options.nodes != 0 && engine.tasks && options.nodes != *engine.tasks) {
    text::throw_usage("--nodes " + std::to_string(options.nodes) + ": expected as many tasks, one per node, but " +
                      (engine.kind == nodes::EngineKind::none
                           ? std::string("no engine has started this. Add --launcher auto, and syncrun starts one")
                           : nodes::to_string(engine.kind) + std::string(" started ") + std::to_string(*engine.tasks) +
                                 ". Give the engine and --nodes the same number"));
  }
  if (!engine.has_others()) return std::nullopt;
  if (options.max_restarts != 0) {
    text::throw_usage("--max-restarts " + std::to_string(options.max_restarts) +
                      ": expected no such option in a job that " + nodes::to_string(engine.kind) +
                      " has started, because a new process cannot join an MPI job in place of one that has ended; "
                      "leave the engine out, "
                      "and let syncrun start it: syncrun --launcher auto --nodes " +
                      (engine.tasks ? std::to_string(*engine.tasks) : "N") + " ... (docs/nodes.md#restarts)");
  }
  return engine;
}

void add_job(EnvironmentChanges& changes, const std::optional<nodes::Engine>& job,
             const nodes::EnvironmentLookup& variables) {
  if (job) {
    changes.set.emplace_back(environment::kInJob, id_of_job(*job, variables).value_or(""));
    changes.set.emplace_back(environment::kNode, std::to_string(job->task));
  } else if (is_inside_job(nodes::find_engine(variables), variables)) {
    changes.set.emplace_back(environment::kInJob, variables(environment::kInJob));
  }
}

std::string describe_job(const nodes::Engine& engine) {
  return "nodes: " + (engine.tasks ? std::to_string(*engine.tasks) : "as many as the engine has started") +
         ", started by " + nodes::to_string(engine.kind) + "\n  transport: " + describe_transport(*engine.mpi) +
         "\n  interfaces of this node: " + os::network_interfaces() + "\n";
}

}  // namespace syncrun::detail::master::command_line
