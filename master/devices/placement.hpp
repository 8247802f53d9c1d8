#pragma once

// Chooses the cores that a worker runs on, and the number of threads that numerical libraries start there. A worker
// runs near its GPU, or on its share of the cores. Each rank is placed according to its own kind of device.

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/node_place.hpp"
#include "master/devices/chosen_devices.hpp"
#include "master/devices/machine.hpp"

namespace syncrun::detail::master::devices {

/// Where the worker of a rank runs.
struct WorkerPlacement {
  int threads = 1;                   // that numerical libraries start, unless the user has chosen another number
  std::vector<int> cores{};          // that the worker is bound to before exec; empty: it is not bound
  std::optional<int> memory_node{};  // the NUMA node that its memory comes from; empty: the system chooses
};

/// The placement of a rank. `devices` are those of this node, by local rank.
WorkerPlacement placement_of(std::span<const DeviceId> devices, int local_rank);

/// The number of threads that a rank may start if a process can use `cores` cores. At least 1. With devices of one
/// kind, all workers together start as many threads as there are cores. In a session with both kinds, the worker of a
/// GPU has one core, for the thread that feeds the GPU. The CPU workers share the other cores.
int threads_for(std::span<const DeviceId> devices, int rank, int cores) noexcept;

/// The cores for one of `workers` CPU workers, the one with this position among them. The workers share the cores node by
/// node, because the cores of a node often do not have consecutive numbers. The result has the cores of the NUMA node
/// that contains the worker's share, so that its memory is near. Empty (not bound) on a machine with one node, with more
/// workers than cores, or if the share is in two nodes. `allowed` are the cores that this process may use, in ascending
/// order. `nodes` has the cores of each NUMA node.
std::vector<int> cores_for(int position, int workers, std::span<const int> allowed,
                           std::span<const std::vector<int>> nodes);

/// The NUMA nodes that have cores. Empty if the system does not show its nodes. Tests use a folder of their own.
std::vector<NumaNode> numa_nodes_in(const std::string& folder = "/sys/devices/system/node");
/// The cores of each NUMA node.
std::vector<std::vector<int>> numa_nodes(const std::string& folder = "/sys/devices/system/node");

/// The cores that the worker of a GPU is bound to: those that the kernel lists as near the GPU's PCI slot. Empty if
/// this is not known, or if there is one node.
std::vector<int> cores_near_gpu(int index);

/// Variables for NCCL, except those that the user has set. NCCL needs a network interface to start: the loopback on one
/// machine, and with several nodes the one that it chooses. It connects to its peers when it starts, so that no later
/// call waits on the host for a connection. Such a wait could not be cancelled.
std::vector<std::pair<std::string, std::string>> nccl_variables(const protocol::NodePlace& place);

/// Thread counts for OpenMP, OpenBLAS, MKL and BLIS. Variables that the user has set stay unchanged. The others get the
/// value of OMP_NUM_THREADS if it is set, or else that of the first library whose variable is set. (MKL and OpenBLAS
/// prefer their own variable to OpenMP's. So another number there would override the user's choice.) If the user has
/// set none, they get the value `threads`.
std::vector<std::pair<std::string, std::string>> thread_variables(int threads);

/// Parses "0-3,8,10-11", the format in which the kernel lists CPUs.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace syncrun::detail::master::devices
