#pragma once

// Finds out whether a process is being debugged. Deadlines do not run under a debugger.

namespace syncrun::detail::master::process {

class Nursery;

/// Returns the pid of the process that traces the process `pid`, or 0.
int tracer_of(int pid);

/// True if a descendant of the process `pid` is being traced.
bool traces_descendants(int pid);

/// True if this process or a child of the nursery is being traced.
bool is_debugged(const Nursery& nursery);

}  // namespace syncrun::detail::master::process
