#pragma once

// How a child ended, when it was lost or when it was expected to end. It exits, or a signal ends it, or it calls exec. An
// exec ends the worker but leaves its process alive.

#include <optional>
#include <string>

#include "common/os/wait.hpp"
#include "launcher/process/spawn.hpp"

namespace syncrun::detail {

class Nursery;

struct ChildEnd {
  std::optional<int> wait_status;  ///< As of waitpid. Empty if the process still existed when the time was up.
  std::string cause;  ///< Such as "exited with code 3", or "called exec: its process runs /usr/bin/sleep now".

  /// False if the process still exists, or ended with a code or by a signal. If nothing is known about its end, it counts
  /// as good.
  bool is_good() const noexcept { return wait_status == 0 || wait_status == kUnknownStatus; }
};

/// Waits until the child has been reaped, for at most 5 seconds. This can take a while, because the kernel first frees
/// the memory of the process. If the process has called exec, recognises that within about 50 ms, kills the process
/// with its group, and waits for its end, again for at most 5 seconds.
ChildEnd await_child_end(Nursery& nursery, int child);

/// A child that did not end as it should have when it was expected to end.
struct BadEnd {
  int child;
  std::string cause;
};

/// Waits until all children have ended, and kills those that have not ended within `grace`. Returns the first one that
/// did not end well by itself.
std::optional<BadEnd> await_expected_ends(Nursery& nursery, Milliseconds grace);

/// The cause for a child that did not end within the grace period.
std::string killed_after(Milliseconds grace);

}  // namespace syncrun::detail
