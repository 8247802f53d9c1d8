#pragma once

// Deadlines do not run under a debugger.

namespace syncrun::detail {

class Nursery;

/// True if this process or a child of the nursery is being traced.
bool is_debugged(const Nursery& nursery);

}  // namespace syncrun::detail
