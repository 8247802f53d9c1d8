#pragma once

// How a child ended after it was noticed to be lost. It exits, or a signal ends it, or it calls exec. An exec ends the
// worker but leaves its process alive.

#include <optional>
#include <string>

#include "common/os/wait.hpp"

namespace syncrun::detail {

class Nursery;

struct ChildEnd {
  std::optional<int> wait_status;  ///< As of waitpid. Empty if the process still existed when the time was up.
  std::string cause;  ///< Such as "exited with code 3", or "called exec: its process runs /usr/bin/sleep now".
};

/// Waits until the child has been reaped, for at most 5 seconds. This can take a while, because the kernel first frees
/// the memory of the process. If the process has called exec, recognises that within about 50 ms, kills the process
/// with its group, and waits for its end, again for at most 5 seconds.
ChildEnd await_child_end(Nursery& nursery, int child);

/// The cause for a child that did not end within the grace period.
std::string killed_after(Milliseconds grace);

}  // namespace syncrun::detail
