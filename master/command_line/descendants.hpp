#pragma once

// Finds the processes that a job leaves behind. `syncrun` is a child subreaper, so all of them become its children. It
// does not matter how they were started or which process group or session they have moved to.

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <set>
#include <vector>

namespace syncrun::detail::master::command_line {

/// The children of this process. Excludes children that the process already had before it executed `syncrun` (exec in a
/// shell).
class Descendants {
 public:
  /// Makes this process a subreaper and remembers the children that it already has. Throws Error (system).
  Descendants();

  /// Reaps the children that have ended, up to `keep`. `keep` itself is left for collect().
  void reap(pid_t keep) const;
  /// True if any child is left. Called after reap().
  bool are_left() const;
  std::vector<pid_t> list() const;

 private:
  std::set<pid_t> foreign_;
};

/// The wait status of a child that has ended. Empty if it has not ended. Stopping and continuing do not count.
std::optional<int> collect(pid_t pid);

}  // namespace syncrun::detail::master::command_line
