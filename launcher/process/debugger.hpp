#pragma once

// Finds out whether a process is being debugged. Deadlines do not run under a debugger.

namespace syncrun::detail {

class Nursery;

/// Returns the pid of the process that traces this one, or 0.
int tracer_of(int pid);

/// True if this process or a child of the nursery is being traced.
bool is_debugged(const Nursery& nursery);

}  // namespace syncrun::detail
