#pragma once

// What is said about a child process that was lost: the same of a worker, a producer and a task.

#include <optional>
#include <string>
#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail {

class Nursery;

struct LostChild {
  std::string who;      // "rank 1 (cpu1, pid 77)"
  std::string tag;      // before each of its last lines: "rank 1"
  std::string where;    // "while starting", "in call 'f' (phase function)"
  Failure failure{};    // with cause and last_stderr
  std::string more{};   // what was done about it, on lines of its own
  int wait_status = 0;  // as far as it is known
};

/// "WHO was lost WHERE: CAUSE", the last lines it wrote, the ranks' report if the failure has one, and MORE. Of kind
/// worker_lost; the native code is the wait status.
Error lost_error(LostChild lost);

/// Of a helper: how it ended, unless that is known, and its last lines are what its nursery knows of this child. That waits
/// for the child's end. The error is another where the nursery has lost its descriptors.
Error lost_helper(Nursery& nursery, int child, LostChild lost, std::optional<std::string> known_cause);

/// The lines that a child wrote last, each with its tag on a line of its own.
std::string tagged_lines(const std::string& tag, const std::vector<std::string>& lines);

}  // namespace syncrun::detail
