#pragma once

// Deadlines do not run under a debugger.

namespace syncrun::detail {

class Nursery;

/// True if this process or a worker is being traced.
bool is_debugged(const Nursery& nursery, int world_size);

}  // namespace syncrun::detail
