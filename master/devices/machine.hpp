#pragma once

// The parts of this machine that a worker can be bound to: cores, sockets and NUMA nodes. hwloc describes them. Without
// hwloc, /sys does, and then the machine has no known sockets and cores.

#include <optional>
#include <string>
#include <vector>

namespace syncrun::detail::master::devices {

/// A NUMA node with cores. Numbers of nodes may have gaps.
struct NumaNode {
  int number = 0;
  std::vector<int> cores{};  // in ascending order
};

/// As in the rest of this folder, a core is what the kernel numbers: a hardware thread. Neighbours in a list are neighbours
/// in the machine.
struct Machine {
  std::vector<std::vector<int>> physical_cores{};  // the hardware threads of each
  std::vector<std::vector<int>> sockets{};         // the cores of each
  std::vector<NumaNode> nodes{};
};

/// Asks hwloc, which also describes another machine if HWLOC_XMLFILE or HWLOC_SYNTHETIC says so. Empty if that is not
/// possible. `why` then says the reason, and what to do.
std::optional<Machine> machine_by_hwloc(std::string& why);

/// Reads the nodes from /sys. Each core counts as a physical core of its own, and there are no sockets. Tests use a folder
/// of their own.
Machine machine_by_files(const std::string& folder = "/sys/devices/system/node");

}  // namespace syncrun::detail::master::devices
