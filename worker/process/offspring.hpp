#pragma once

// Ends the processes that bodies have started and moved out of the worker's process group, for example into a session
// of their own (setsid), or as daemons. When the master dies, no process adopts them that could end them. So they are
// found by a mark: the variable SYNCRUN_JOB. All processes that a worker starts inherit it, and the kernel shows it to
// other processes of the same user (/proc/PID/environ).
//
// A process is not found if it runs a program that was started with an environment without this variable.

#include <sys/types.h>

namespace syncrun::detail::worker::process {

/// Remembers the mark that the master has set for this process. Without one, end_offspring does nothing.
void remember_mark() noexcept;

/// Kills all processes with the mark, except this process and other workers and helpers of the master, which end by
/// themselves and do the same. Makes system calls only, so that signal handlers can call it. The number of searches is
/// limited. So a process that starts others faster than they are killed can survive.
void end_offspring() noexcept;

}  // namespace syncrun::detail::worker::process
