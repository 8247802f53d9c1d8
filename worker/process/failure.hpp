#pragma once

// How an exception becomes the failure of a call, a producer or a task. Only this code decides what the master is told.

#include <cstdint>
#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail::worker::process {

/// The code that the exception came through. If it came through user code, the user's function is at fault for wrong
/// use of the library and for exceptions that are not of type Error. Such a failure is of kind `function`. If it came
/// through the library's own code, an Error keeps its kind, and other exceptions are of kind `system`.
enum class ThrownThrough : std::uint8_t { library, user_code };

/// The rank whose failure it is. A peer's failure is not reported a second time.
enum class FailureOf : std::uint8_t { this_rank, peer };

struct CaughtFailure {
  ErrorKind kind;
  int native_code;
  std::string text;
  FailureOf origin = FailureOf::this_rank;
};

/// Describes the exception that is being handled. Rethrows SessionLost, because no call can report it.
CaughtFailure current_failure(ThrownThrough through);

}  // namespace syncrun::detail::worker::process
