#pragma once

// What has started this process: mpirun, srun, or nobody who starts more than one. The environment says it.

#include <functional>
#include <optional>
#include <string>

#include "launcher/nodes/mpi_library.hpp"

namespace syncrun::detail {

/// A start of several tasks by an engine.
struct EngineTask {
  std::string engine;  // "mpirun of Open MPI", for messages
  int tasks = 1;       // in the job
  int task = 0;        // the number of this one
  /// The MPI by which the tasks find each other. Nothing if the engine offers none.
  std::optional<Mpi> mpi;
};

/// The value of a variable of the environment, or null.
using Variables = std::function<const char*(const char* name)>;

/// Returns nothing if no engine has started this process. A shell in an allocation of Slurm counts as such, also if it
/// has Slurm's variables. Throws Error (usage) if a variable has an impossible value.
std::optional<EngineTask> find_engine(const Variables& variables);

/// Throws Error (usage) if there are several tasks, and the engine offers no MPI. The message names the option that helps.
/// (Two tasks on one node are found later, when the nodes say what they are.)
void check_engine(const EngineTask& task);

}  // namespace syncrun::detail
