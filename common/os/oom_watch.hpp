#pragma once

// Finds out whether the kernel has killed a process for lack of memory. If a worker ends by SIGKILL, the signal alone
// does not show whether the kernel's out-of-memory killer sent it.

#include <cstdint>
#include <optional>
#include <string>

namespace syncrun::detail::os {

/// Counts the out-of-memory kills since its construction, in the control group of this process (v2 or v1). Without a
/// control group, it counts those on the whole machine.
class OomWatch {
 public:
  /// The files and folders in which the kernel reports kills. Tests use folders of their own.
  struct Places {
    std::string membership = "/proc/self/cgroup";
    std::string groups = "/sys/fs/cgroup";
    std::string machine = "/proc/vmstat";
  };
  OomWatch() : OomWatch(Places{}) {}
  explicit OomWatch(const Places& places);

  /// ", probably by the out-of-memory killer: ..." with limit and usage, if there was a kill since construction. Empty
  /// otherwise.
  std::string describe_kill() const;

 private:
  std::optional<std::int64_t> kills() const;

  std::string counter_;  // the file that contains the count
  std::string limit_;  // the files of the limit and usage of the group with the least limit; empty if there is no limit
  std::string usage_;
  std::int64_t before_ = 0;
};

}  // namespace syncrun::detail::os
