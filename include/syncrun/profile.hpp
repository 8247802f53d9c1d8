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
  std::chrono::nanoseconds max{};     ///< The longest.
  std::chrono::nanoseconds total{};   ///< The sum over all calls.
};

/// The times of all calls of one function, either on one rank or in the master. If a call has several slices, the time
/// of a phase is the sum over its slices.
struct CallProfile {
  std::string name;  ///< The name of the function, or of a collective such as "all_reduce of weights".
  /// The rank, or -1 for the master. The master's time of a call starts when the master sends the call to the workers,
  /// or when the ranks of the call are done with their calls before, if that is later. It ends when the last of these
  /// ranks is done. So the times of calls on different ranks may overlap, and those of calls with a rank in common do
  /// not. Neither the time in which a call waits behind others, nor the time until the program asks for its result,
  /// counts.
  int rank = -1;
  std::int64_t calls = 0;   ///< The number of calls in which the rank took part.
  PhaseTimes whole{};       ///< The whole call.
  PhaseTimes inputs{};      ///< The rank gets its rows of the inputs.
  PhaseTimes function{};    ///< The body runs.
  PhaseTimes collective{};  ///< The rank is in a collective that the body or the master called.
  PhaseTimes waiting{};     ///< The rank waits for the other ranks to return.
  PhaseTimes reduction{};   ///< The rank reduces outputs and stores the results of updates.
};

/// Formats a profile as a table with one line per function and rank. Each line has the median and the largest time of
/// each phase, in microseconds.
SYNCRUN_EXPORT std::string to_string(std::span<const CallProfile> calls);

}  // namespace syncrun
