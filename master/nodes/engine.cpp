#include "master/nodes/engine.hpp"

#include <algorithm>
#include <charconv>
#include <climits>
#include <string_view>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "master/nodes/attendance.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// The numbers of steps that Slurm starts on its own: for a batch script, an interactive shell and others.
constexpr std::int64_t kFirstSpecialStep = 0xFFFF'FFF0;

/// The variables of the environment, as text and as numbers.
class EngineVariables {
 public:
  explicit EngineVariables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  /// Empty if it is not set. An empty variable counts as not set.
  std::string text(const char* name) const {
    const char* const value = lookup_(name);
    return value == nullptr ? std::string() : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }
  std::int64_t number(const char* name, std::int64_t least, std::int64_t most) const {
    const std::string value = text(name);
    const auto number = environment::whole_number(value.c_str());
    if (!number || *number < least || *number > most) {
      environment::throw_bad_value(name, value,
                                   "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return *number;
  }
  int count(const char* name) const { return static_cast<int>(number(name, 1, INT_MAX)); }
  std::optional<int> count_if_set(const char* name) const {
    return has(name) ? std::optional<int>(count(name)) : std::nullopt;
  }
  int index(const char* name, int size) const { return static_cast<int>(number(name, 0, size - 1)); }

 private:
  const EnvironmentLookup& lookup_;
};

/// The number at a place of a list such as "2(x3),1", which stands for 2, 2, 2, 1. Empty if there is no such place.
std::optional<int> at_place(std::string_view list, int place) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    int value = 0;
    int times = 1;
    const char* const end = entry.data() + entry.size();
    const auto [after, code] = std::from_chars(entry.data(), end, value);
    if (code != std::errc()) return std::nullopt;
    if (std::string_view(after, static_cast<std::size_t>(end - after)).starts_with("(x")) {
      if (std::from_chars(after + 2, end, times).ec != std::errc()) return std::nullopt;
    }
    if (place < times) return value;
    place -= times;
  }
  return std::nullopt;
}

/// A task of srun. A batch script is none, although it has most of the variables of a job.
bool is_in_step(const EngineVariables& variables) {
  return variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_NUM_TASKS") &&
         variables.number("SLURM_STEP_ID", 0, UINT32_MAX) < kFirstSpecialStep;
}

Engine step_of_srun(const EngineVariables& variables, EngineKind kind, std::optional<Mpi> mpi) {
  Engine engine{.kind = kind, .mpi = mpi};
  const int tasks = variables.count("SLURM_STEP_NUM_TASKS");
  engine.tasks = tasks;
  engine.task = variables.index("SLURM_PROCID", tasks);
  if (variables.has("SLURM_NODEID")) {
    engine.tasks_here = at_place(variables.text("SLURM_STEP_TASKS_PER_NODE"), variables.index("SLURM_NODEID", INT_MAX));
  }
  engine.job = variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID");
  const auto hosts = hosts_in_slurm_list(variables.text("SLURM_STEP_NODELIST"), static_cast<std::size_t>(tasks));
  if (hosts.size() == static_cast<std::size_t>(tasks)) engine.hosts = hosts;
  return engine;
}

Engine open_mpi_engine(const EngineVariables& variables) {
  const int tasks = variables.count("OMPI_COMM_WORLD_SIZE");
  return {.kind = EngineKind::open_mpi,
          .task = variables.index("OMPI_COMM_WORLD_RANK", tasks),
          .tasks = tasks,
          .tasks_here = variables.count_if_set("OMPI_COMM_WORLD_LOCAL_SIZE"),
          .job = variables.text("PMIX_NAMESPACE"),
          .mpi = Mpi::open_mpi};
}

Engine hydra_engine(const EngineVariables& variables) {
  const int tasks = variables.count("PMI_SIZE");
  return {.kind = EngineKind::hydra,
          .task = variables.index("PMI_RANK", tasks),
          .tasks = tasks,
          .tasks_here = variables.count_if_set("MPI_LOCALNRANKS"),
          .job = variables.text("PMI_JOBID"),
          .mpi = Mpi::mpich};
}

/// What starts one task on each node.
const char* one_task_per_node(EngineKind kind) noexcept {
  switch (kind) {
    case EngineKind::open_mpi: return "--map-by ppr:1:node";
    case EngineKind::hydra: return "-ppn 1";
    case EngineKind::none:
    case EngineKind::pmix:
    case EngineKind::srun_pmi2:
    case EngineKind::srun_no_mpi: break;
  }
  return "--ntasks-per-node=1, and --gpus-per-node in place of --gpus-per-task";
}

/// The starts with which the tasks of this MPI find each other.
const char* fitting_starts(Mpi mpi) noexcept {
  return mpi == Mpi::open_mpi ? "srun --mpi=pmix or Open MPI's mpirun" : "srun --mpi=pmi2 or MPICH's mpirun";
}

std::string in_words(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

const char* to_string(EngineKind kind) noexcept {
  switch (kind) {
    case EngineKind::none: return "no engine";
    case EngineKind::open_mpi: return "mpirun (Open MPI)";
    case EngineKind::pmix: return "srun --mpi=pmix";
    case EngineKind::hydra: return "mpirun (MPICH)";
    case EngineKind::srun_pmi2: return "srun --mpi=pmi2";
    case EngineKind::srun_no_mpi: return "srun without MPI";
  }
  return "";
}

Engine find_engine(const EnvironmentLookup& lookup) {
  const EngineVariables variables(lookup);
  // mpirun may start its tasks in a step of srun. So the variables of mpirun come first.
  const bool has_pmix = variables.has("PMIX_NAMESPACE") && variables.has("PMIX_RANK");
  if (has_pmix && variables.has("OMPI_COMM_WORLD_SIZE") && variables.has("OMPI_COMM_WORLD_RANK")) {
    return open_mpi_engine(variables);
  }
  const bool has_pmi =
      variables.has("PMI_SIZE") && variables.has("PMI_RANK") && (variables.has("PMI_FD") || variables.has("PMI_PORT"));
  if (has_pmi && variables.has("MPI_LOCALNRANKS")) return hydra_engine(variables);
  if (is_in_step(variables)) {
    if (has_pmix) return step_of_srun(variables, EngineKind::pmix, Mpi::open_mpi);
    if (has_pmi) return step_of_srun(variables, EngineKind::srun_pmi2, Mpi::mpich);
    return step_of_srun(variables, EngineKind::srun_no_mpi, std::nullopt);
  }
  if (has_pmi) return hydra_engine(variables);
  if (has_pmix) {
    return {.kind = EngineKind::pmix,
            .task = variables.index("PMIX_RANK", INT_MAX),
            .tasks = std::nullopt,
            .job = variables.text("PMIX_NAMESPACE"),
            .mpi = Mpi::open_mpi};
  }
  return {};
}

void check_start(const Engine& engine) {
  if (!engine.tasks || *engine.tasks == 1) return;
  if (engine.kind == EngineKind::srun_no_mpi) {
    text::throw_usage(
        "srun started " + in_words(*engine.tasks, "task") +
        ", which cannot find each other: this needs an MPI interface. Use srun --mpi=pmix (with Open MPI) or "
        "srun --mpi=pmi2 (with MPICH). If one task was meant, use srun -n 1");
  }
  if (engine.tasks_here.value_or(1) > 1) {
    text::throw_usage(std::string(to_string(engine.kind)) + " started " + in_words(*engine.tasks_here, "task") +
                      " on one node, expected one task per node, which uses all devices of the node. Use " +
                      one_task_per_node(engine.kind));
  }
}

void check_nodes(const Engine& engine, const Transport& transport) {
  if (!engine.mpi || !engine.tasks || *engine.tasks == transport.nodes()) return;
  text::throw_usage(std::string(to_string(engine.kind)) + " started " + in_words(*engine.tasks, "task") + ", but " +
                    transport.description() + " connects " + in_words(transport.nodes(), "task") + ". For " +
                    to_string(*engine.mpi) + ", use " + fitting_starts(*engine.mpi));
}

}  // namespace syncrun::detail::master::nodes
