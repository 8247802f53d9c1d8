#pragma once

// What `syncrun --launcher` starts: an engine, which starts a `syncrun` on each node. Chooses the engine among those that
// are installed, and writes its command line.

#include <array>
#include <csignal>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "master/command_line/options.hpp"
#include "master/nodes/engine.hpp"
#include "master/nodes/mpi_library.hpp"

namespace syncrun::detail::master::command_line {

enum class Launcher {
  srun,      ///< Slurm's.
  open_mpi,  ///< The mpirun of Open MPI.
  hydra,     ///< The mpirun of MPICH.
};

/// What is installed here. Tests have others.
struct InstalledTools {
  /// Whether a program with this name is in PATH, or at this path.
  std::function<bool(const std::string& name)> has;
  /// What a command prints, on both streams. Empty if it cannot be started.
  std::function<std::string(const std::vector<std::string>& command)> output;
  /// Whether a session can use this MPI.
  std::function<bool(nodes::Mpi mpi)> has_transport;
  /// The names of all variables of the environment.
  std::function<std::vector<std::string>()> variables;
};
InstalledTools tools_of_this_machine();

/// A start that was checked.
struct Launch {
  Launcher launcher = Launcher::srun;
  std::string engine;      ///< The engine's program: "srun", "mpirun.mpich", "/opt/openmpi/bin/mpirun".
  std::string pmi;         ///< Of srun: "pmix" or "pmi2".
  bool over_ssh = false;   ///< mpirun starts its processes by ssh, also in an allocation of a scheduler.
  bool is_inside = false;  ///< In an allocation of Slurm. Outside of one, srun makes one.
  bool overlaps = false;   ///< An earlier start, or the step of this process, may hold the cores of the allocation.
  int nodes = 1;
  /// The hosts of the nodes, and then the spare ones. Empty: the scheduler chooses.
  std::vector<std::string> hosts = {};
  std::optional<int> workers = {};          ///< On each node. Empty: one for each device that is there.
  std::vector<std::string> words = {};      ///< Of --launcher-args.
  std::vector<std::string> variables = {};  ///< Names of those that this engine passes on only if it is told to.
};

/// Whether an engine sets the variable for each of its tasks. `syncrun` may be the only task of one, and mpirun refuses to
/// be started in a task.
bool is_of_task(std::string_view name);

/// "srun --mpi=pmix", "mpirun (Open MPI)".
std::string name_of(const Launch& launch);

/// The start that the options ask for. Empty if they ask for none: then `syncrun` runs the program itself. An engine that is
/// named only in the configuration file is a wish of the user: it starts jobs of which --nodes or --hosts is given. Throws
/// Error (usage) if the options do not fit each other or the machine.
std::optional<Launch> find_launch(const CommandOptions& options, const nodes::EnvironmentLookup& variables,
                                  const InstalledTools& tools);

/// The engine's command line, which starts `task` once on each of `nodes` nodes. `hosts` are their names, or empty.
std::vector<std::string> engine_command(const Launch& launch, int nodes, std::span<const std::string> hosts,
                                        std::span<const std::string> task);

/// The command line of the `syncrun` on each node. `restarts` is how often the program was started before.
std::vector<std::string> task_command(const CommandOptions& options, const Launch& launch, int restarts,
                                      const std::string& token);

/// A word of the program's command line as it was before task_command(), which changes ':', because mpirun would take it for
/// the end of a command.
std::string word_of_task(const std::string& word);

/// The launch in a few lines, for --dry-run.
std::string describe_launch(const CommandOptions& options, const Launch& launch);

/// An engine passes on only some signals, and ends the job at others. `syncrun` sends
/// one of the former in place of one of the latter, and the `syncrun` on the node takes it for what was meant. Returns 0 if
/// the engine passes on none that could mean this one.
int signal_for_engine(Launcher launcher, int signal) noexcept;
/// Signals that `syncrun` sends in place of others, which do not mean anything by themselves.
inline constexpr std::array kStandIns{SIGURG, SIGALRM};
/// What a signal from an engine that `syncrun` has started means.
int signal_from_engine(nodes::EngineKind kind, int signal) noexcept;

}  // namespace syncrun::detail::master::command_line
