#pragma once

// The end of a session: what the master finds out about a loss, and how the workers end when the session is closed.

#include <cstdint>
#include <optional>
#include <string>

#include "master/failures/failure_report.hpp"
#include "master/pool/worker_pool.hpp"

namespace syncrun::detail::master::session {

/// A loss that the master has seen.
struct SeenLoss {
  Failure failure;
  std::string where;    // in words, such as "in call 'step' (phase function)"
  int wait_status = 0;  // 0 if it is not known
};

/// Describes the loss that the control block reports. Waits
/// for the worker's end. Then waits up to 100 ms for peers that wait for each other, until they have recorded when they
/// stopped waiting.
SeenLoss describe_seen_loss(pool::WorkerPool& pool, const failures::FailureReport& report);

/// Called after the workers have been told to end. Waits until they have ended, and kills those that have not ended
/// within `grace`. Returns the error about the first worker that did not end well. `last` is the last command that was
/// published.
std::optional<Error> await_ends_at_close(pool::WorkerPool& pool, failures::FailureReport& report, std::uint64_t last,
                                         os::Milliseconds grace);

}  // namespace syncrun::detail::master::session
