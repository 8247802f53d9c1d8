#pragma once

// The role of this process: a program starts as a master, and serve_if_worker may make it a worker. The source file
// also contains syncrun::restarts, which says how often the program was restarted.

namespace syncrun::detail {

/// True if this process serves calls, that is, if it is a worker and not a master. Any thread.
bool is_in_worker() noexcept;

/// Makes is_in_worker() true for the rest of the process.
void become_worker() noexcept;

}  // namespace syncrun::detail
