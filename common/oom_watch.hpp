#pragma once

// Whether the kernel has killed for lack of memory: a worker that ends by SIGKILL may have been its choice, and its end
// alone does not say so.

#include <cstdint>
#include <optional>
#include <string>

namespace syncrun::detail {

/// Counts out-of-memory kills in this process's control group (v2 or v1; without one, on the machine) from when it is
/// made.
class OomWatch {
 public:
  /// Where the kernel says so; tests have folders of their own.
  struct Places {
    std::string membership = "/proc/self/cgroup";
    std::string groups = "/sys/fs/cgroup";
    std::string machine = "/proc/vmstat";
  };
  OomWatch() : OomWatch(Places{}) {}
  explicit OomWatch(const Places& places);

  /// ", probably by the out-of-memory killer: ..." with limit and usage, if there was a kill since; else empty.
  std::string describe_kill() const;

 private:
  std::optional<std::int64_t> kills() const;

  std::string counter_;  // the file that has the count
  std::string limit_;    // files of the group's limit and usage; empty: the count is the machine's
  std::string usage_;
  std::int64_t before_ = 0;
};

}  // namespace syncrun::detail
