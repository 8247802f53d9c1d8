#pragma once

// How a child ended whose sign of life has gone: by itself, by a signal, or by exec, which ends the worker in it and leaves
// the process alive.

#include <optional>
#include <string>

#include "common/wait.hpp"

namespace syncrun::detail {

class Nursery;

struct ChildEnd {
  std::optional<int> wait_status;  ///< As of waitpid. Nothing if the process was still there when the time was up.
  std::string cause;  ///< Such as "exited with code 3", or "called exec: its process runs /usr/bin/sleep now".
};

/// Waits until the child was reaped: at most 5 seconds, since the kernel first frees its memory. A process that has replaced
/// its program by exec is recognised within about 50 ms, and killed with its group.
ChildEnd await_child_end(Nursery& nursery, int child);

/// The cause where a child outlived the grace period.
std::string killed_after(Milliseconds grace);

}  // namespace syncrun::detail
