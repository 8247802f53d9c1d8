#pragma once

// What bodies have started and moved out of the worker's process group: a child in a session of its own (setsid), a daemon
// whose parent is gone. When the master dies there is nobody left whose child it would become, so it is found by a mark: the
// variable SYNCRUN_JOB, which everything that a worker starts inherits, and which the kernel shows to others of the same
// user (/proc/PID/environ).
//
// Not found: what has started another program with an environment that does not have the variable any more.

#include <sys/types.h>

namespace syncrun::detail {

/// Remembers the mark that the master has set for this process. Without one, end_offspring does nothing.
void remember_mark() noexcept;

/// Kills all processes with the mark, apart from this one and from other workers and helpers of the master, which see to
/// theirs and end by themselves. Makes system calls only, for the sake of signal handlers. Bounded: a process that starts
/// others faster than they are killed wins.
void end_offspring() noexcept;

}  // namespace syncrun::detail
