#include "launcher/syncrun/job_nodes.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

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

/// A node is a machine together with a UTS namespace. If this process has a namespace of its own, it is a node of its own
/// too (unshare --uts, for tests).
bool has_own_host_name() {
  struct stat own {};
  struct stat parents {};
  return ::stat("/proc/self/ns/uts", &own) == 0 &&
         ::stat(("/proc/" + std::to_string(::getppid()) + "/ns/uts").c_str(), &parents) == 0 &&
         own.st_ino != parents.st_ino;
}

}  // namespace

std::optional<Engine> find_job(const CommandOptions& options, const EnvironmentLookup& variables) {
  // A program of a job may start `syncrun` itself. No engine has started that one.
  Engine engine;
  if (variables(environment::kInJob) == nullptr) engine = find_engine(variables);
  if (options.nodes != 0 && engine.tasks && options.nodes != *engine.tasks) {
    throw_usage("--nodes " + std::to_string(options.nodes) + ": expected as many tasks, one per node, but " +
                (engine.kind == EngineKind::none
                     ? std::string("no engine has started this (srun -N NODES syncrun ..., or mpirun --map-by node -np "
                                   "NODES syncrun ...)")
                     : to_string(engine.kind) + std::string(" started ") + std::to_string(*engine.tasks)));
  }
  if (engine.tasks_here.value_or(1) == 1 || !has_own_host_name()) check_start(engine);
  if (!engine.has_others()) return std::nullopt;
  if (options.max_restarts != 0) {
    throw_usage(
        "--max-restarts: a job on several nodes is restarted by its engine (sbatch --requeue), expected no such "
        "option, got " +
        std::to_string(options.max_restarts));
  }
  return engine;
}

void add_job(EnvironmentChanges& changes, const Engine& engine) {
  changes.set.emplace_back(environment::kInJob, "1");
  changes.set.emplace_back(environment::kNode, std::to_string(engine.task));
}

std::string describe_job(const Engine& engine) {
  return "nodes: " + (engine.tasks ? std::to_string(*engine.tasks) : "as many as the engine has started") +
         ", started by " + to_string(engine.kind) + "\n  transport: " + describe_transport(*engine.mpi) +
         "\n  interfaces of this node: " + interfaces() + "\n";
}

}  // namespace syncrun::detail
