#pragma once

// What ends a worker's wait for its peers early. The exceptions are not of type Error, because the failure is on
// another rank.

#include <chrono>
#include <exception>
#include <optional>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::worker::process {

/// Thrown out of a wait when the call was abandoned, because a peer failed.
class SYNCRUN_EXPORT_FOR_CUDA Abandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the call was abandoned, since another rank failed"; }
};

/// Thrown out of a wait when the session is over, because a peer was lost.
class SYNCRUN_EXPORT_FOR_CUDA SessionLost : public std::exception {
 public:
  const char* what() const noexcept override { return "the session is over, since another worker was lost"; }
};

/// A condition that a wait checks in addition to the one that it waits for.
class Interruption {
 public:
  virtual ~Interruption() = default;
  /// Whether the wait must end. Waits call this often.
  virtual bool is_set() const noexcept = 0;
  /// Throws the exception that ends the wait. Called when is_set() is true.
  [[noreturn]] virtual void raise() const = 0;

  void check() const {
    if (is_set()) raise();
  }
};

/// How long to wait for peers, and what ends the wait early.
struct WaitLimits {
  const Interruption& interruption;
  /// If empty, the wait has no limit. All waits of workers in a call are like this: the master has the deadline of the
  /// call, knows the phase of every rank, and ends the session.
  std::optional<std::chrono::milliseconds> deadline{};
};

}  // namespace syncrun::detail::worker::process
