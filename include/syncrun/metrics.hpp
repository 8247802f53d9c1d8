#pragma once

// RankMetrics: running totals of what each rank has done. The ranks count if SessionOptions::metrics is set. For the
// master only.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "syncrun/detail/export.hpp"

namespace syncrun {

/// What a rank has done since the session was opened. Times are measured on the host, like those of a profile
/// (PhaseTimes). The phases are those of all commands: calls, collectives that the master calls, and transfers.
struct RankMetrics {
  int rank = 0;                           ///< The rank.
  std::string device;                     ///< Such as "cpu0".
  std::string node;                       ///< The name of the machine.
  std::int64_t calls = 0;                 ///< Finished calls of functions. Calls that failed count too.
  std::chrono::nanoseconds call_time{};   ///< The time of these calls.
  std::int64_t call_rows = 0;             ///< This rank's rows in these calls. A call without rows counts as one row.
  std::chrono::nanoseconds inputs{};      ///< The rank gets its rows of the inputs, or values of a transfer.
  std::chrono::nanoseconds function{};    ///< A body runs.
  std::chrono::nanoseconds collective{};  ///< The rank is in a collective that a body or the master called.
  std::chrono::nanoseconds waiting{};     ///< The rank waits for other ranks, before or after a body.
  std::chrono::nanoseconds reduction{};   ///< The rank reduces outputs and stores the results of updates.
  std::chrono::nanoseconds idle{};        ///< The rank has no command.
  std::chrono::nanoseconds other{};       ///< The rest, such as the start of a communicator.
  std::int64_t input_bytes = 0;           ///< The rows and arrays that calls and transfers have given to the rank.
  std::int64_t collectives = 0;           ///< Collectives in which the rank took part.
  std::int64_t collective_bytes = 0;      ///< The sum of the sizes of their arrays. The whole array counts each time.
  std::int64_t train_steps = 0;           ///< Calls that were steps of a TrainStep. They also count as calls.
  std::chrono::nanoseconds train_step_time{};  ///< The time of these steps.
  std::int64_t train_step_rows = 0;            ///< This rank's rows in these steps.
};

/// Formats metrics as the text format of Prometheus, version 0.0.4.
SYNCRUN_EXPORT std::string to_string(std::span<const RankMetrics> ranks);

}  // namespace syncrun
