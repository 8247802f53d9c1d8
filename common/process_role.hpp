#pragma once

// What this process is in its session. A program starts as master; serve_if_worker turns it into a worker.

namespace syncrun::detail {

/// This process serves calls: it is a worker, and no master. Any thread.
bool is_in_worker() noexcept;

/// From here on is_in_worker() is true, for good.
void become_worker() noexcept;

}  // namespace syncrun::detail
