#include "common/os/control_group.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>

#include "common/os/kernel_file.hpp"

namespace syncrun::detail::os {

namespace {

/// The path of the group in a line of the membership: "0::/path" (version 2), or "4:cpu,cpuacct:/path". Empty if the line
/// is about other controllers.
std::string group_in(const std::string& line, std::string_view controller, bool is_v2) {
  const auto first = line.find(':');
  const auto second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {};
  if (is_v2) return line.starts_with("0::") ? line.substr(second + 1) : std::string();
  std::istringstream names(line.substr(first + 1, second - first - 1));
  for (std::string name; std::getline(names, name, ',');) {
    if (name == controller) return line.substr(second + 1);
  }
  return {};
}

/// The quota of one group in cores. Empty files, and files that do not exist, are no quota.
double quota_of(const ControlGroup& group) {
  std::int64_t time = 0;
  std::int64_t period = 0;
  if (group.is_v2) {
    std::istringstream file(kernel_file(group.folder + "/cpu.max"));  // "150000 100000", or "max 100000"
    file >> time >> period;
  } else {
    std::istringstream(kernel_file(group.folder + "/cpu.cfs_quota_us")) >> time;  // -1: none
    std::istringstream(kernel_file(group.folder + "/cpu.cfs_period_us")) >> period;
  }
  if (time <= 0 || period <= 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(time) / static_cast<double>(period);
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const GroupPlaces& places) {
  std::vector<ControlGroup> groups;
  for (const bool is_v2 : {true, false}) {
    std::string root = places.groups;
    if (!is_v2) root.append("/").append(controller);
    std::istringstream membership(kernel_file(places.membership));
    for (std::string line; std::getline(membership, line);) {
      std::string group = group_in(line, controller, is_v2);
      if (group.empty()) continue;
      if (group == "/") group.clear();
      for (;; group.erase(group.rfind('/'))) {
        groups.push_back({root + group, is_v2});
        if (group.find('/') == std::string::npos) break;
      }
    }
  }
  return groups;
}

int cores_granted(const GroupPlaces& places) {
  double least = std::numeric_limits<int>::max();
  for (const ControlGroup& group : control_groups("cpu", places)) least = std::min(least, quota_of(group));
  return static_cast<int>(std::max(1.0, std::ceil(least)));
}

}  // namespace syncrun::detail::os
