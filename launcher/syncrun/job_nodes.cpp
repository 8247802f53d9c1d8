#include "launcher/syncrun/job_nodes.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <array>
#include <memory>

#include "common/protocol/environment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

/// The network interfaces that are up, with their IPv4 addresses: "eth0 10.0.0.1, ib0 10.1.0.1".
std::string interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "unknown";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  std::string text;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_up || at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> address{};
    const auto* const internet = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    ::inet_ntop(AF_INET, &internet->sin_addr, address.data(), address.size());
    text.append(text.empty() ? "" : ", ").append(at->ifa_name).append(" ").append(address.data());
  }
  return text.empty() ? "none besides loopback" : text;
}

/// The version of the MPI, or why it cannot be used.
std::string describe_transport(Mpi mpi) {
  try {
    return load_mpi_transport(mpi)->description();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::optional<EngineTask> find_job(const CommandOptions& options, const Variables& variables) {
  // A program of a job may start `syncrun` itself. That one belongs to no engine.
  std::optional<EngineTask> task;
  if (variables(environment::kInJob) == nullptr) task = find_engine(variables);
  const int tasks = task ? task->tasks : 1;
  if (options.nodes != 0 && options.nodes != tasks) {
    throw_usage("--nodes " + std::to_string(options.nodes) + ": expected as many tasks, one per node, but " +
                (task ? task->engine + " has started " + std::to_string(tasks)
                      : std::string("no engine has started this (srun -N NODES syncrun ..., or mpirun --map-by node -np "
                                    "NODES syncrun ...)")));
  }
  if (tasks == 1) return std::nullopt;
  check_engine(*task);
  if (options.max_restarts != 0) {
    throw_usage("--max-restarts: a job on several nodes is restarted by its engine (sbatch --requeue), expected no such "
                "option, got " + std::to_string(options.max_restarts));
  }
  return task;
}

void add_job(EnvironmentChanges& changes, const EngineTask& task) {
  changes.set.emplace_back(environment::kInJob, "1");
  changes.set.emplace_back(environment::kNodes, std::to_string(task.tasks));
  changes.set.emplace_back(environment::kNode, std::to_string(task.task));
  changes.set.emplace_back(environment::kTransport, *task.mpi == Mpi::open_mpi ? "openmpi" : "mpich");
}

std::string describe_job(const EngineTask& task) {
  return "nodes: " + std::to_string(task.tasks) + ", started by " + task.engine + "; this is node " +
         std::to_string(task.task) + "\n  transport: " + describe_transport(*task.mpi) + "\n  interfaces: " + interfaces() +
         "\n";
}

}  // namespace syncrun::detail
