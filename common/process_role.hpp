#pragma once

// What this process is in its session: a program starts as master, and serve_if_worker turns it into a worker. And how often its
// job was started (syncrun::restarts).

namespace syncrun::detail {

/// This process serves calls: it is a worker, and no master. Any thread.
bool is_in_worker() noexcept;

/// From here on is_in_worker() is true, for good.
void become_worker() noexcept;

}  // namespace syncrun::detail
