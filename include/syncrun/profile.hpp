#pragma once

// Where the time of calls went: kept where SessionOptions::profile or trace ask for it. Master only.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "syncrun/detail/export.hpp"

namespace syncrun {

/// Times of one phase over all calls of a function, by the host's clock: on a CUDA device work counts where the host
/// waits for it.
struct PhaseTimes {
  std::chrono::nanoseconds median{};  ///< To 3 %.
  std::chrono::nanoseconds max{};
  std::chrono::nanoseconds total{};
};

/// The calls of one function on one rank, or as the master sees them. With slices, a phase's time is the sum over them.
struct CallProfile {
  std::string name;        ///< The function; or "all_reduce of weights" and the like.
  int rank = -1;           ///< -1: the master, from publication (or the end of the call before) to the result.
  std::int64_t calls = 0;  ///< Those that the rank took part in.
  PhaseTimes whole;
  PhaseTimes inputs;      ///< Taking its rows.
  PhaseTimes function;    ///< In the body.
  PhaseTimes collective;  ///< In collectives that the body called, or the master.
  PhaseTimes waiting;     ///< For the other ranks to return.
  PhaseTimes reduction;   ///< Reducing outputs, committing updates.
};

/// A table: a line per function and rank, median and largest time of each phase in microseconds.
SYNCRUN_EXPORT std::string to_string(std::span<const CallProfile> calls);

}  // namespace syncrun
