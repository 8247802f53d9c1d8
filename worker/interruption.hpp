#pragma once

// What ends a worker's wait for its peers before they come. What is thrown then is no Error: it went wrong on another rank.

#include <chrono>
#include <exception>
#include <optional>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail {

/// Thrown out of a wait when the call was abandoned: a peer failed.
class SYNCRUN_EXPORT_FOR_CUDA Abandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the call was abandoned, since another rank failed"; }
};

/// Thrown out of a wait when the session is over: a peer was lost.
class SYNCRUN_EXPORT_FOR_CUDA SessionLost : public std::exception {
 public:
  const char* what() const noexcept override { return "the session is over, since another worker was lost"; }
};

/// What a wait looks at besides what it waits for.
class Interruption {
 public:
  virtual ~Interruption() = default;
  /// Whether the wait is in vain. Waits ask often.
  virtual bool is_set() const noexcept = 0;
  /// Throws what ended the wait. Called when it is set.
  [[noreturn]] virtual void raise() const = 0;

  void check() const {
    if (is_set()) raise();
  }
};

/// How long to wait for peers, and what ends that early.
struct WaitLimits {
  const Interruption& interruption;
  /// Nothing: endless, as all waits of workers in a call are. The master's deadline counts there: it knows every rank's
  /// phase, and ends the session.
  std::optional<std::chrono::milliseconds> deadline{};
};

}  // namespace syncrun::detail
