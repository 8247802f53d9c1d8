#pragma once

// Loads the transport over MPI, which is a library of its own for each MPI. libsyncrun does not link MPI, so programs on
// one node do not need it and do not load it.

#include <memory>

#include "master/nodes/transport.hpp"

namespace syncrun::detail::master::nodes {

/// The MPIs for which there is a transport. Other MPIs are compatible with one of them: those of Intel and Cray, for
/// example, with MPICH.
enum class Mpi { open_mpi, mpich };

/// "Open MPI", "MPICH".
const char* to_string(Mpi mpi) noexcept;

/// Whether the transport and its MPI are installed here.
bool has_mpi_transport(Mpi mpi) noexcept;

/// Loads the library and makes a transport, which is not open yet. Called by the master and the agents, at most once in
/// a process. Throws Error (system) if the library or its MPI is missing.
std::unique_ptr<Transport> load_mpi_transport(Mpi mpi);

}  // namespace syncrun::detail::master::nodes
