#pragma once

// Everything a job leaves behind becomes a child of `syncrun` (a child subreaper), however it was started and
// whatever group or session it moved to. That is how it is found again.

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <set>
#include <vector>

namespace syncrun::detail {

/// The children of this process, those of a program that was replaced by `syncrun` (exec in a shell) left
/// out.
class Descendants {
 public:
  /// Makes this process a subreaper and remembers the children it has already. Throws Error (system).
  Descendants();

  /// Collects those that ended. `keep` is left alone: its end is collected by wait_for().
  void reap(pid_t keep) const;
  /// Whether any child is left, after a reap().
  bool are_left() const;
  std::vector<pid_t> list() const;

 private:
  std::set<pid_t> foreign_;
};

/// The wait status of a child that has ended; nothing while it has not. Stops and continuations do not count.
std::optional<int> collect(pid_t pid);

}  // namespace syncrun::detail
