#pragma once

// What ends a worker's wait for its peers before they come. Neither is an Error: what went wrong is another rank's.

#include <exception>

namespace syncrun::detail {

/// Thrown out of a wait when the call was abandoned: a peer failed.
class Abandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the call was abandoned, since another rank failed"; }
};

/// Thrown out of a wait when the session is over: a peer was lost.
class SessionLost : public std::exception {
 public:
  const char* what() const noexcept override { return "the session is over, since another worker was lost"; }
};

}  // namespace syncrun::detail
