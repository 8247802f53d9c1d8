#pragma once

// How a child ended, when it was lost or when it was expected to end. It exits, or a signal ends it, or it calls exec. An
// exec ends the worker but leaves its process alive.

#include <optional>
#include <string>

#include "common/os/wait.hpp"
#include "master/process/native_stack.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::process {

class Nursery;

struct ChildEnd {
  std::optional<int> wait_status;  ///< As of waitpid. Empty if the process still existed when the time was up.
  std::string cause;    ///< Such as "exited with code 3", or "called exec: its process runs /usr/bin/sleep now".
  NativeStack crash{};  ///< The stack of the thread that has crashed. Empty, also its problem, if the process has not.

  /// False if the process still exists, or ended with a code or by a signal. If nothing is known about its end, it counts
  /// as good.
  bool is_good() const noexcept { return wait_status == 0 || wait_status == kUnknownStatus; }
};

/// The signal of a process that has crashed and whose core file the kernel is writing; 0 if the kernel does not show the
/// signal. Empty for all other processes. The kernel reports the death of the process only afterwards.
std::optional<int> core_dump_of(int pid);
/// "killed by SIGSEGV (Segmentation fault)", or "crashed" for 0.
std::string describe_crash(int signal);

/// Waits until the child has been reaped, for at most 5 seconds: the kernel first frees the memory of the process. While it
/// writes a core file, the grace of the nursery applies if it is longer. Then kills the process, so the file is cut off.
/// If the process has called exec, recognises that within about 50 ms, kills the process with its group, and waits for its
/// end, again for at most 5 seconds.
ChildEnd await_child_end(Nursery& nursery, int child);

/// A child that did not end as it should have when it was expected to end.
struct BadEnd {
  int child;
  std::string cause;
};

/// Waits until all children have ended, and kills those that have not ended within `grace`. Returns the first one that
/// did not end well by itself.
std::optional<BadEnd> await_expected_ends(Nursery& nursery, os::Milliseconds grace);

/// The cause for a child that did not end within the grace period.
std::string killed_after(os::Milliseconds grace);

}  // namespace syncrun::detail::master::process
