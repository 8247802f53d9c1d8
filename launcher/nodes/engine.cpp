#include "launcher/nodes/engine.hpp"

#include "common/protocol/environment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

constexpr int kMostTasks = 1'000'000;

int number_of(const Variables& variables, const char* name, int least) {
  const char* const text = variables(name);
  const auto number = text == nullptr ? std::nullopt : environment::whole_number(text);
  if (number && *number >= least && *number <= kMostTasks) return static_cast<int>(*number);
  environment::throw_bad_value(name, text == nullptr ? "nothing" : text,
                               "a whole number from " + std::to_string(least) + ", which the engine sets");
}

EngineTask slurm_task(const Variables& variables) {
  EngineTask task;
  task.tasks = number_of(variables, "SLURM_STEP_NUM_TASKS", 1);
  task.task = number_of(variables, "SLURM_PROCID", 0);
  if (variables("PMIX_RANK") != nullptr) {
    task.engine = "srun --mpi=pmix";
    task.mpi = Mpi::open_mpi;
  } else if (variables("PMI_RANK") != nullptr || variables("PMI_FD") != nullptr) {
    task.engine = "srun --mpi=pmi2";
    task.mpi = Mpi::mpich;
  } else {
    task.engine = "srun without MPI";
  }
  return task;
}

}  // namespace

std::optional<EngineTask> find_engine(const Variables& variables) {
  if (variables("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return EngineTask{.engine = "mpirun of Open MPI",
                      .tasks = number_of(variables, "OMPI_COMM_WORLD_SIZE", 1),
                      .task = number_of(variables, "OMPI_COMM_WORLD_RANK", 0),
                      .mpi = Mpi::open_mpi};
  }
  if (variables("SLURM_STEP_NUM_TASKS") != nullptr) return slurm_task(variables);
  if (variables("PMI_SIZE") != nullptr && variables("PMI_RANK") != nullptr) {
    return EngineTask{.engine = "mpirun of MPICH",
                      .tasks = number_of(variables, "PMI_SIZE", 1),
                      .task = number_of(variables, "PMI_RANK", 0),
                      .mpi = Mpi::mpich};
  }
  return std::nullopt;
}

void check_engine(const EngineTask& task) {
  if (task.tasks == 1 || task.mpi) return;
  throw_usage(task.engine + " has started " + std::to_string(task.tasks) +
              " tasks, but they cannot find each other: use srun --mpi=pmix (with Open MPI) or srun --mpi=pmi2 (with "
              "MPICH)");
}

}  // namespace syncrun::detail
