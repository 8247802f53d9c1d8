#pragma once

// How an exception becomes the failure of a call, a producer or a task: the one place that decides what the master is told.

#include <cstdint>
#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail {

/// Where the exception came through. The user's function is at fault for wrong use of the library and for exceptions that
/// are no Error: its failure is of kind `function`. The same out of the library's own work keeps its kind, or is `system`.
enum class ThrownThrough : std::uint8_t { library, user_code };

/// Whose failure it is. A peer's is not reported twice.
enum class FailureOf : std::uint8_t { this_rank, peer };

struct CaughtFailure {
  ErrorKind kind;
  int native_code;
  std::string text;
  FailureOf origin = FailureOf::this_rank;
};

/// Of the exception that is being handled. Throws SessionLost on: no call can be told of that.
CaughtFailure current_failure(ThrownThrough through);

}  // namespace syncrun::detail
