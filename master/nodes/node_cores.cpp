#include "master/nodes/node_cores.hpp"

#include <algorithm>
#include <iterator>

#include "common/os/wait.hpp"

namespace syncrun::detail::master::nodes {

namespace {

bool has_too_few(const NodeLoad& node) {
  return node.workers > node.cores.usable && node.cores.usable < node.cores.of_machine;
}

}  // namespace

NodeCores own_cores() noexcept { return {os::usable_cores(), os::machine_cores()}; }

std::string describe_too_few_cores(std::span<const NodeLoad> nodes) {
  const auto first = std::find_if(nodes.begin(), nodes.end(), has_too_few);
  if (first == nodes.end()) return {};
  const auto others = std::count_if(std::next(first), nodes.end(), has_too_few);
  std::string text = first->name + ": " + std::to_string(first->workers) + " workers share " +
                     std::to_string(first->cores.usable) + " of the " + std::to_string(first->cores.of_machine) +
                     " cores of the machine";
  if (others != 0)
    text += ", and " + std::to_string(others) + (others == 1 ? " more node has" : " more nodes have") + " too few";
  return text +
         ". If the engine has bound the task, give it more cores: --bind-to none (Open MPI), -bind-to none (MPICH) or "
         "--cpus-per-task (Slurm)";
}

}  // namespace syncrun::detail::master::nodes
