#pragma once

// What started this process: an engine that starts the same program on several nodes (mpirun, srun), or nothing of the
// kind. Engines say so in the environment.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "master/nodes/mpi_library.hpp"

namespace syncrun::detail::master::nodes {

enum class EngineKind {
  none,         ///< A shell, a batch script, or a step with one interactive shell.
  open_mpi,     ///< Open MPI's mpirun.
  pmix,         ///< srun --mpi=pmix, or another launcher that speaks PMIx.
  hydra,        ///< MPICH's mpirun, or another launcher that speaks PMI-1.
  srun_pmi2,    ///< srun --mpi=pmi2.
  srun_no_mpi,  ///< srun --mpi=none. Its tasks do not know each other.
};

/// An engine, and the place of this process in what it started. A task is a process that the engine started.
struct Engine {
  EngineKind kind = EngineKind::none;
  int task = 0;
  /// The number of tasks. Empty if the engine does not say it.
  std::optional<int> tasks = 1;
  /// The number of tasks on this node. Empty if the engine does not say it.
  std::optional<int> tasks_here = {};
  /// The engine's name for the job. Empty if it has none.
  std::string job = {};
  /// The hosts of the tasks, if the engine says them and there is one task on each.
  std::vector<std::string> hosts = {};
  /// The MPI that fits the engine. Empty if there is none.
  std::optional<Mpi> mpi = {};

  /// Whether the session has other nodes, and needs a transport.
  bool has_others() const noexcept { return mpi.has_value() && tasks != 1; }
};

/// The engine's name for users: "mpirun (Open MPI)", "srun --mpi=pmix".
const char* to_string(EngineKind kind) noexcept;

/// Returns the value of a variable, or null. environment::get is one.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Finds the engine. Variables that only describe a job do not count: a batch script has them too. Throws Error (usage)
/// if a variable that counts has a value that is not a number, or is out of range.
Engine find_engine(const EnvironmentLookup& lookup);

/// Throws Error (usage) if this start cannot be a session: there are several tasks on one node, or several tasks that
/// cannot find each other. The message names the option that helps.
void check_start(const Engine& engine);

/// Throws Error (usage) if the open transport connects another number of nodes than the engine has started. This happens
/// if the engine and the MPI do not fit: then each process is alone, and would run the whole program. Called by each
/// node after open().
void check_nodes(const Engine& engine, const Transport& transport);

}  // namespace syncrun::detail::master::nodes
