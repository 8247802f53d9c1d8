#pragma once

// Asks the engine which nodes have come, while MPI waits for them in MPI_Init.

#include <pthread.h>

#include <optional>

#include "master/nodes/attendance.hpp"

namespace syncrun::detail::master::nodes::mpi {

/// `opener` is the thread in MPI_Init. It may stand still during this call, and continues afterwards. The call may have
/// taken the engine's answer to MPI, so the process has to end. Takes at most two seconds. Returns nothing if the engine
/// does not say it.
std::optional<Attendance> ask_engine(int node, int nodes, pthread_t opener);

}  // namespace syncrun::detail::master::nodes::mpi
