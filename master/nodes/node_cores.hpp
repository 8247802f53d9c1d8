#pragma once

// Warns of engines that give a node too few cores. An engine may bind a task to one core, because most programs of MPI
// start a task for each core. All workers of a node would then share this core.

#include <cstdint>
#include <span>
#include <string>

namespace syncrun::detail::master::nodes {

/// The cores that the task of a node may use, and those of its machine.
struct NodeCores {
  std::int32_t usable = 0;
  std::int32_t of_machine = 0;
};

/// Those of this process and its machine.
NodeCores own_cores() noexcept;

/// How many workers a node has, and on which cores.
struct NodeLoad {
  std::string name;  // "node 1 (b)"
  int workers = 0;
  NodeCores cores;
};

/// Returns a warning about nodes that may not use all cores of their machine, and have fewer of them than workers. Returns
/// an empty text if each node has enough.
std::string describe_too_few_cores(std::span<const NodeLoad> nodes);

}  // namespace syncrun::detail::master::nodes
