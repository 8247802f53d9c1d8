#pragma once

// Errors of MPI calls, as Error.

#include <mpi.h>

#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes::mpi {

/// The text of MPI for an error code.
inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

/// "node 2", or "the nodes" if no single node is at fault (-1).
inline std::string node_text(int node) { return node < 0 ? "the nodes" : "node " + std::to_string(node); }

/// Throws Error (system) if an MPI call has failed. `what` is for a sentence: "cannot WHAT node 2: ...".
inline void check_mpi(int code, const char* what, int node = -1) {
  if (code == MPI_SUCCESS) return;
  throw Error(ErrorKind::system, std::string("cannot ") + what + " " + node_text(node) + ": " + mpi_error_text(code),
              code);
}

/// True if the operation is complete. Throws as check_mpi().
inline bool is_complete(MPI_Request& request, const char* what, int node) {
  int is_done = 0;
  check_mpi(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), what, node);
  return is_done != 0;
}

/// True if an operation that nobody waits for any more is over, successfully or not.
inline bool is_done_with(MPI_Request& request) noexcept {
  int is_done = 0;
  return MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done != 0;
}

}  // namespace syncrun::detail::master::nodes::mpi
