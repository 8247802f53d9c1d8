#pragma once

// Deadlines do not run under a debugger.

namespace syncrun::detail {

class Nursery;

/// The process that traces another one, or 0.
int tracer_of(int pid);

/// True if this process or a child of the nursery is being traced.
bool is_debugged(const Nursery& nursery);

}  // namespace syncrun::detail
