#pragma once

// The errors about a child process that was lost. They have the same form for a worker, a producer and a task.

#include <optional>
#include <string>
#include <vector>

#include "master/process/native_stack.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::process {

class Nursery;

}  // namespace syncrun::detail::master::process

namespace syncrun::detail::master::failures {

struct LostChild {
  std::string who;      // "rank 1 (cpu1, pid 77)"
  std::string tag;      // stands before each of its last lines: "rank 1"
  std::string where;    // "while starting", "in call 'f' (phase function)"
  Failure failure{};    // with cause and last_stderr
  std::string more{};   // what was done about it, on separate lines
  int wait_status = 0;  // 0 if it is not known
};

/// The message is "WHO was lost WHERE: CAUSE", followed by the last lines of the child, its stack if it has crashed, the
/// report about the ranks if the failure has one, and MORE. The kind is worker_lost, and the native code is the wait status.
Error lost_error(LostChild lost);

/// The error about a lost helper. Fills in how the helper ended and its last lines, from its nursery. Waits for its
/// end, unless `known_cause` says how it ended. If the program has closed descriptors of the nursery, returns an error
/// that says so instead.
Error lost_helper(process::Nursery& nursery, int child, LostChild lost, std::optional<std::string> known_cause);

/// Puts the stack of a crash into the failure.
void put_stack(Failure& failure, process::NativeStack stack);

/// The last lines of a child. Each is preceded by a newline and the tag.
std::string tagged_lines(const std::string& tag, const std::vector<std::string>& lines);

}  // namespace syncrun::detail::master::failures
