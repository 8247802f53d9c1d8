#pragma once

// Which nodes of a job have come, for the message of a start that takes too long.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/wait.hpp"

namespace syncrun::detail::master::nodes {

/// What the engine knows about the nodes of a job. Both lists are by node.
struct Attendance {
  std::vector<bool> has_come;
  std::vector<std::string> hosts;  ///< An empty name is not known.

  /// Fills in the names that are not known. `others` has as many names, or is empty.
  void add_hosts(const std::vector<std::string>& others);
};

/// Says that MPI has not connected the nodes within the limit, which of them have not come, and which option helps.
/// `attendance` is empty if the engine does not say who has come.
std::string describe_late_nodes(int nodes, os::Milliseconds limit, const std::optional<Attendance>& attendance);

/// The hosts in a list of Slurm: "n[1-2,04],m" stands for n1, n2, n04, m. Empty if the list is not well-formed, or has more
/// than `most` hosts.
std::vector<std::string> hosts_in_slurm_list(std::string_view list, std::size_t most);

}  // namespace syncrun::detail::master::nodes
