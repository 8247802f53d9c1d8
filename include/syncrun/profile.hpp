#pragma once

// CallProfile: the times that the phases of calls took. The master records them if SessionOptions::profile or
// SessionOptions::trace is set. For the master only.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "syncrun/detail/export.hpp"

namespace syncrun {

/// The times of one phase over all calls of a function. They are measured on the host. So work on a CUDA device counts
/// for the phase in which the host waits for it.
struct PhaseTimes {
  std::chrono::nanoseconds median{};  ///< The error is at most 3 %.
  std::chrono::nanoseconds max{};
  std::chrono::nanoseconds total{};
};

/// The times of all calls of one function, either on one rank or in the master. If a call has several slices, the time
/// of a phase is the sum over its slices.
struct CallProfile {
  std::string name;  ///< The name of the function, or of a collective such as "all_reduce of weights".
  /// The rank, or -1 for the master. The master's time of a call starts when it sends the call to the workers, or when
  /// the call before ends, if that is later. The time ends when the result has arrived.
  int rank = -1;
  std::int64_t calls = 0;  ///< The number of calls in which the rank took part.
  PhaseTimes whole;        ///< The whole call.
  PhaseTimes inputs;       ///< The rank gets its rows of the inputs.
  PhaseTimes function;     ///< The body runs.
  PhaseTimes collective;   ///< The rank is in a collective that the body or the master called.
  PhaseTimes waiting;      ///< The rank waits for the other ranks to return.
  PhaseTimes reduction;    ///< The rank reduces outputs and stores the results of updates.
};

/// Formats a profile as a table with one line per function and rank. Each line has the median and the largest time of
/// each phase, in microseconds.
SYNCRUN_EXPORT std::string to_string(std::span<const CallProfile> calls);

}  // namespace syncrun
