#pragma once

// What ends a worker's wait for its peers before they come. Neither is an Error: what went wrong is another rank's.

#include <exception>

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

}  // namespace syncrun::detail
