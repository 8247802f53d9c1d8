#pragma once

// The control groups of this process, versions 1 and 2: which memory and how many cores the system grants it.

#include <string>
#include <string_view>
#include <vector>

namespace syncrun::detail::os {

/// Where the kernel shows control groups. Tests use folders of their own.
struct GroupPlaces {
  std::string membership = "/proc/self/cgroup";
  std::string groups = "/sys/fs/cgroup";
};

struct ControlGroup {
  std::string folder;
  bool is_v2;
};

/// The groups that limit this process by a controller, such as "memory": its own group, then the groups that contain it.
/// Those of version 2 come first. Folders of groups that this process does not see are among them: in a container, its own
/// group may be mounted as the root.
std::vector<ControlGroup> control_groups(std::string_view controller, const GroupPlaces& places = {});

/// How many cores' worth of time the groups grant, rounded up to at least 1. INT_MAX if they set no quota (cpu.max, or
/// cpu.cfs_quota_us of version 1).
int cores_granted(const GroupPlaces& places = {});

}  // namespace syncrun::detail::os
