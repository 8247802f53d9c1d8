#include "master/command_line/launch.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/executable.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/command_line/dry_run.hpp"
#include "master/command_line/option_table.hpp"
#include "master/command_line/task_report.hpp"
#include "master/devices/device_list.hpp"
#include "master/devices/devices.hpp"
#include "master/doctor/program_run.hpp"
#include "master/nodes/attendance.hpp"

namespace syncrun::detail::master::command_line {

namespace {

constexpr std::size_t kMostHosts = 1'000'000;

using Variables = nodes::EnvironmentLookup;

std::string value_of(const Variables& variables, const char* name) {
  const char* const value = variables(name);
  return value == nullptr ? std::string() : value;
}

bool is_in_slurm(const Variables& variables) {
  return !value_of(variables, "SLURM_JOB_ID").empty() && !value_of(variables, "SLURM_JOB_NODELIST").empty();
}

/// Whether mpirun finds the hosts by itself: in the allocation of a scheduler, or in a file that a variable names.
bool has_hosts_of_its_own(const Variables& variables) {
  constexpr std::array kSources{"LSB_HOSTS",
                                "LSB_DJOB_HOSTFILE",
                                "PBS_NODEFILE",
                                "PE_HOSTFILE",
                                "HYDRA_HOST_FILE",
                                "OMPI_MCA_orte_default_hostfile",
                                "PRTE_MCA_prte_default_hostfile"};
  return is_in_slurm(variables) ||
         std::ranges::any_of(kSources, [&](const char* name) { return !value_of(variables, name).empty(); });
}

bool is_from_command_line(const CommandOptions& options, std::string_view name) {
  return std::ranges::any_of(options.given, [name](const CommandOptions::Given& each) {
    return each.name == name && each.source == kCommandLineSource;
  });
}

/// The word of --launcher, or "auto" if other options ask for a start. Empty: `syncrun` runs the program itself.
std::string wanted_launcher(const CommandOptions& options, const nodes::Engine& around) {
  const auto asks = [&](std::string_view name) { return is_from_command_line(options, name); };
  const char* asking = nullptr;
  for (const char* name : {"hosts", "hostfile", "spares", "launcher-args"}) {
    if (asks(name)) asking = name;
  }
  const bool is_none = options.launcher.empty() || options.launcher == "none";
  if (asks("launcher") && is_none && asking != nullptr)
    text::throw_usage(std::string("--launcher none and --") + asking + ": expected one of the two");
  const bool has_engine = around.tasks.value_or(2) != 1;
  const bool prefers = !is_none && asks("nodes") && !has_engine;
  if (!(asks("launcher") && !is_none) && asking == nullptr && !prefers) return {};
  if (has_engine) {
    text::throw_usage(std::string("--") + (asks("launcher") ? "launcher" : asking) +
                      ": expected to start an engine, but " + nodes::to_string(around.kind) +
                      " has started this already. Leave the option out, or run syncrun without the engine before it");
  }
  return is_none ? "auto" : options.launcher;
}

// ---- the engine -----------------------------------------------------------------------------------------------

/// An engine's program, as the user calls it or as a search has found it.
struct Engine {
  Launcher launcher;
  std::string program;
  std::string pmi = {};
};

std::optional<Engine> mpirun_of(const std::string& name, const InstalledTools& tools) {
  if (!tools.has(name)) return std::nullopt;
  const std::string version = tools.output({name, "--version"});
  if (version.find("Open MPI") != std::string::npos || version.find("OpenRTE") != std::string::npos)
    return Engine{Launcher::open_mpi, name};
  if (version.find("HYDRA") != std::string::npos) return Engine{Launcher::hydra, name};
  return std::nullopt;
}

bool can_be_used(const Engine& engine, const InstalledTools& tools) {
  const bool is_mpich = engine.launcher == Launcher::hydra || engine.pmi == "pmi2";
  return tools.has_transport(is_mpich ? nodes::Mpi::mpich : nodes::Mpi::open_mpi);
}

/// The first mpirun whose MPI can be used, or else the first one.
std::optional<Engine> find_mpirun(const InstalledTools& tools) {
  std::optional<Engine> first;
  for (const char* name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich"}) {
    auto engine = mpirun_of(name, tools);
    if (engine && can_be_used(*engine, tools)) return engine;
    if (!first) first = std::move(engine);
  }
  return first;
}

/// PMIx comes before PMI-2, unless the start may use other nodes than the first ones of an allocation. There, tasks with the
/// PMIx of Slurm 22.05 do not find each other.
std::optional<Engine> find_srun(const std::string& name, bool has_spares, const InstalledTools& tools) {
  if (!tools.has(name)) return std::nullopt;
  const std::string list = tools.output({name, "--mpi=list"});
  std::optional<Engine> first;
  for (const char* pmi : {has_spares ? "pmi2" : "pmix", has_spares ? "pmix" : "pmi2"}) {
    if (list.find(pmi) == std::string::npos) continue;
    Engine engine{Launcher::srun, name, pmi};
    if (can_be_used(engine, tools)) return engine;
    if (!first) first = engine;
  }
  if (first) return first;
  text::throw_usage("--launcher srun: expected a Slurm with PMIx or PMI-2 (srun --mpi=list), got: " +
                    list.substr(0, list.find_last_not_of(" \n") + 1));
}

Engine find_engine(const std::string& word, const CommandOptions& options, const Variables& variables,
                   const InstalledTools& tools) {
  const bool has_hosts = !options.hosts.empty();
  const bool has_spares = options.spares != 0 && is_in_slurm(variables);
  const std::string name = word.substr(word.rfind('/') + 1);
  if (word == "auto") {
    std::optional<Engine> engine;
    const bool prefers_srun = is_in_slurm(variables) || !(has_hosts || has_hosts_of_its_own(variables));
    if (prefers_srun) engine = find_srun("srun", has_spares, tools);
    if (!engine) engine = find_mpirun(tools);
    if (!engine && !prefers_srun) engine = find_srun("srun", has_spares, tools);
    if (engine) return *engine;
    text::throw_usage("--launcher auto: expected srun, or mpirun of Open MPI or MPICH, in PATH, found none");
  }
  if (name == "srun") {
    if (const auto engine = find_srun(word, has_spares, tools)) return *engine;
    text::throw_usage("--launcher " + word + ": expected Slurm's srun in PATH, found none");
  }
  const bool is_any = word == "mpirun" || word == "ssh";
  const auto engine = is_any ? find_mpirun(tools) : mpirun_of(word, tools);
  if (engine) return *engine;
  text::throw_usage("--launcher " + word + ": expected the mpirun of Open MPI or MPICH" +
                    (is_any ? " in PATH, found none" : ", found another program or none"));
}

// ---- nodes ----------------------------------------------------------------------------------------------------

int count_in(const std::string& text) {
  int count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

/// Sets the number of nodes and their hosts.
void choose_nodes(Launch& launch, const CommandOptions& options, const Variables& variables) {
  const bool is_slurms = is_in_slurm(variables) && !launch.over_ssh;
  launch.hosts = options.hosts;
  int most = static_cast<int>(launch.hosts.size());
  if (launch.hosts.empty() && is_slurms) {
    most = count_in(value_of(variables, "SLURM_JOB_NUM_NODES"));
    launch.hosts = nodes::hosts_in_slurm_list(value_of(variables, "SLURM_JOB_NODELIST"), kMostHosts);
    if (static_cast<int>(launch.hosts.size()) != most) launch.hosts.clear();
  }
  const std::string where = options.hosts.empty() ? "the allocation of Slurm" : "the list of hosts";
  launch.nodes = options.nodes != 0 ? options.nodes : most - options.spares;
  if (options.nodes == 0 && most == 0)
    text::throw_usage("--launcher: expected --nodes N with it, or --hosts a,b,c, got neither");
  if (options.spares != 0 && launch.hosts.empty()) {
    text::throw_usage(
        "--spares " + std::to_string(options.spares) +
        ": expected --hosts with it, or an allocation of Slurm. Where srun makes the allocation, it chooses "
        "other nodes at a restart by itself");
  }
  if (most != 0 && launch.nodes + options.spares > most) {
    text::throw_usage("--nodes " + std::to_string(launch.nodes) +
                      (options.spares != 0 ? " and --spares " + std::to_string(options.spares) : "") +
                      ": expected at most " + std::to_string(most) + " nodes, as many as " + where + " has");
  }
  if (launch.nodes < 1)
    text::throw_usage("--spares " + std::to_string(options.spares) + ": expected fewer than the " +
                      std::to_string(most) + " nodes that " + where + " has");
  if (launch.launcher == Launcher::srun || !options.hosts.empty()) return;
  if (launch.over_ssh || !has_hosts_of_its_own(variables)) {
    text::throw_usage("--launcher " + std::string(launch.over_ssh ? "ssh" : "mpirun") +
                      ": expected --hosts a,b,c or --hostfile FILE with it" +
                      (launch.over_ssh ? "" : ", or an allocation of a scheduler") + ", got none");
  }
}

/// The number of workers on each node, if the options say it.
std::optional<int> workers_of(const CommandOptions& options) {
  const std::string devices = options.effective(environment::kDevices);
  if (!devices.empty()) {
    if (devices.find(':') != std::string::npos) return std::nullopt;  // devices of some nodes
    return static_cast<int>(devices::parse_device_list(devices::kFromCommandLine.devices, devices).by_rank.size());
  }
  const int count = count_in(options.effective(environment::kProcesses));
  return count > 0 ? std::optional(count) : std::nullopt;
}

/// Variables that belong to this machine or login, or to an engine or scheduler, mean nothing on another node.
bool is_for_other_nodes(std::string_view name) {
  constexpr std::array kNames{"HOME", "HOSTNAME", "PWD",     "OLDPWD", "SHLVL",      "SHELL",     "USER", "LOGNAME",
                              "MAIL", "TERM",     "DISPLAY", "TMPDIR", "XAUTHORITY", "LS_COLORS", "_"};
  constexpr std::array kStarts{"OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "SLURM_", "SSH_", "XDG_", "DBUS_"};
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return std::ranges::all_of(name, is_letter) && !is_of_task(name) && std::ranges::find(kNames, name) == kNames.end() &&
         std::ranges::none_of(kStarts, [&](const char* start) { return name.starts_with(start); }) &&
         std::ranges::find(environment::kInternal, name) == environment::kInternal.end();
}

/// As it was called, if that is a path to this file. Links on the way may lead to other places on other nodes.
std::string find_this_command() {
  std::error_code error;
  const auto called = std::filesystem::absolute(os::find_executable(::program_invocation_name).path, error);
  if (std::filesystem::equivalent(called, "/proc/self/exe", error)) return called.string();
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

/// As it was found at the first start. Later, another file may have the name.
const std::string& path_of_this_command() {
  static const std::string path = find_this_command();
  return path;
}

constexpr char kEscape = '\\';

/// Whether the word is ":", or the escape of such a word.
bool is_separator(std::string_view word) {
  return word.ends_with(':') && word.find_first_not_of(kEscape) == word.size() - 1;
}

/// What the nodes report comes through the engine. Throws Error (usage) if its options send that elsewhere.
void check_words(const Launch& launch, const Variables& variables) {
  const auto refuse = [](const std::string& word) {
    text::throw_usage("--launcher-args: expected an engine whose output comes to syncrun, but " + word +
                      " sends it elsewhere. Use syncrun ... > FILE 2>&1, or --log-dir DIR for a file of each rank");
  };
  for (const std::string& word : launch.words) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    const bool is_srun = launch.launcher == Launcher::srun;
    const bool is_short = word.starts_with("-o") || word.starts_with("-e");
    const bool is_long = name.size() >= 4 && (std::string_view("--output").starts_with(name) ||
                                              std::string_view("--error").starts_with(name));
    if (is_srun && (is_short || is_long)) refuse(word);
    if (launch.launcher == Launcher::hydra &&
        (name.ends_with("-outfile-pattern") || name.ends_with("-errfile-pattern") || name == "-outfile" ||
         name == "-errfile"))
      refuse(word);
    if (launch.launcher == Launcher::open_mpi && (word.find("nocopy") != std::string::npos || name.ends_with("-xterm")))
      refuse(word);
    if (!is_srun && word == ":")
      text::throw_usage("--launcher-args: expected options, got ':', after which mpirun expects another program");
  }
  if (launch.launcher != Launcher::srun) return;
  for (const char* name : {"SLURM_STDOUTMODE", "SLURM_STDERRMODE"}) {
    if (!value_of(variables, name).empty()) refuse(std::string("the variable ") + name);
  }
}

void add(std::vector<std::string>& to, std::initializer_list<std::string> words) { to.insert(to.end(), words); }

const OptionRow& row_of_option(std::string_view name) {
  const auto table = option_table();
  return *std::ranges::find(table, name, &OptionRow::name);
}

/// Whether an option of the configuration file has no effect in this job, such as a rule for log files without a folder.
bool is_unused(const CommandOptions& options, const CommandOptions::Given& option) {
  const char* const variable = row_of_option(option.name).variable;
  const bool was_dropped = variable != nullptr && options.value_of(variable).empty();
  const bool is_for_wrapper = option.name == "wrap-terminal" && options.effective(environment::kWrap).empty();
  return option.source != kCommandLineSource && (was_dropped || is_for_wrapper);
}

}  // namespace

bool is_of_task(std::string_view name) {
  constexpr auto kStarts = std::to_array<const char*>({"PMIX_RANK",
                                                       "PMIX_NAMESPACE",
                                                       "PMIX_SERVER_",
                                                       "PMIX_SECURITY_MODE",
                                                       "PMIX_BFROP_BUFFER_TYPE",
                                                       "PMIX_GDS_MODULE",
                                                       "PMIX_SYSTEM_TMPDIR",
                                                       "PMIX_DSTORE_",
                                                       "PMIX_HOSTNAME",
                                                       "PMIX_VERSION",
                                                       "PMIX_ID",
                                                       "PMI_RANK",
                                                       "PMI_SIZE",
                                                       "PMI_FD",
                                                       "PMI_PORT",
                                                       "PMI_ID",
                                                       "PMI_JOBID",
                                                       "PMI_SPAWNED",
                                                       "PMI_APPNUM",
                                                       "HYDI_",
                                                       "MPI_LOCALNRANKS",
                                                       "MPI_LOCALRANKID",
                                                       "OMPI_APP_CTX",
                                                       "OMPI_ARGV",
                                                       "OMPI_COMM",
                                                       "OMPI_FILE_LOCATION",
                                                       "OMPI_FIRST_RANKS",
                                                       "OMPI_MCA_ess_base_",
                                                       "OMPI_MCA_orte_app_num",
                                                       "OMPI_MCA_orte_ess_",
                                                       "OMPI_MCA_orte_launch",
                                                       "OMPI_NUM_APP_CTX",
                                                       "OMPI_UNIVERSE_SIZE"});
  return std::ranges::any_of(kStarts, [name](const char* start) { return name.starts_with(start); });
}

InstalledTools tools_of_this_machine() {
  return {.has = [](const std::string& name) { return os::find_executable(name).error == 0; },
          .output =
              [](std::vector<std::string> command) {
                constexpr std::chrono::seconds kLongest{20};
                command.front() = os::find_executable(command.front()).path;
                const doctor::ProgramEnd end = doctor::run_program(command, kLongest);
                return end.output + end.errors;
              },
          .has_transport = nodes::has_mpi_transport,
          .variables =
              [] {
                std::vector<std::string> names;
                for (char** each = ::environ; *each != nullptr; ++each) {
                  const std::string_view line = *each;
                  names.emplace_back(line.substr(0, line.find('=')));
                }
                return names;
              }};
}

std::string name_of(const Launch& launch) {
  switch (launch.launcher) {
    case Launcher::srun: return launch.engine + " --mpi=" + launch.pmi;
    case Launcher::open_mpi: return launch.engine + " (Open MPI)";
    case Launcher::hydra: return launch.engine + " (MPICH)";
  }
  return launch.engine;
}

std::optional<Launch> find_launch(const CommandOptions& options, const nodes::EnvironmentLookup& variables,
                                  const InstalledTools& tools) {
  const std::string word = wanted_launcher(options, nodes::find_engine(variables));
  if (word.empty()) return std::nullopt;
  if (options.spares != 0 && options.max_restarts == 0) {
    text::throw_usage("--spares " + std::to_string(options.spares) +
                      ": expected --max-restarts N with it, because a spare node begins at a restart, got none");
  }
  const Engine engine = find_engine(word, options, variables, tools);
  Launch launch{.launcher = engine.launcher,
                .engine = engine.program,
                .pmi = engine.pmi,
                .over_ssh = word == "ssh",
                .is_inside = is_in_slurm(variables),
                .overlaps = nodes::find_engine(variables).kind != nodes::EngineKind::none,
                .workers = workers_of(options),
                .words = options.launcher_words};
  check_words(launch, variables);
  choose_nodes(launch, options, variables);
  if (launch.launcher == Launcher::open_mpi) {
    launch.variables = tools.variables();
    const auto is_given = [&](const std::string& name) {  // with --env, or in the configuration file
      return std::ranges::any_of(options.program_variables,
                                 [&](const auto& each) { return each.name == name && each.source != "environment"; });
    };
    std::erase_if(launch.variables,
                  [&](const std::string& name) { return !is_given(name) && !is_for_other_nodes(name); });
    std::ranges::sort(launch.variables);
  }
  return launch;
}

std::vector<std::string> engine_command(const Launch& launch, int nodes, std::span<const std::string> hosts,
                                        std::span<const std::string> task) {
  const std::string count = std::to_string(nodes);
  std::vector<std::string> command{launch.engine};
  switch (launch.launcher) {
    case Launcher::srun:
      add(command, {"--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1", "--mpi=" + launch.pmi,
                    "--kill-on-bad-exit=1", "--cpu-bind=none", "--export=ALL", "--input=0"});
      // Inside an allocation, the job has all cores of it, unless --cpus-per-task is given.
      if (launch.is_inside && launch.overlaps) add(command, {"--overlap"});
      if (!launch.is_inside)
        add(command, {launch.workers ? "--cpus-per-task=" + std::to_string(*launch.workers + 1) : "--exclusive"});
      if (!hosts.empty()) add(command, {"--nodelist=" + text::joined(hosts, ",")});
      break;
    case Launcher::open_mpi:
      add(command, {"-np", count, "--map-by", "ppr:1:node", "--bind-to", "none"});
      if (launch.over_ssh) add(command, {"--mca", "plm", "rsh"});
      if (!hosts.empty()) add(command, {"--host", text::joined(hosts, ":1,") + ":1"});
      for (const std::string& name : launch.variables) add(command, {"-x", name});
      break;
    case Launcher::hydra:
      add(command, {"-np", count, "-ppn", "1", "-bind-to", "none", "-genvall"});
      if (launch.over_ssh) add(command, {"-rmk", "user", "-launcher", "ssh"});
      if (!hosts.empty()) add(command, {"-hosts", text::joined(hosts, ",")});
      break;
  }
  command.insert(command.end(), launch.words.begin(), launch.words.end());
  command.insert(command.end(), task.begin(), task.end());
  return command;
}

std::vector<std::string> task_command(const CommandOptions& options, const Launch& launch, int restarts,
                                      const std::string& token) {
  constexpr std::array kOfThisOne{"launcher", "launcher-args", "hosts",   "hostfile", "spares",  "nodes",
                                  "env",      "env-file",      "dry-run", "pid-file", "restart", "max-restarts"};
  std::vector<std::string> command{path_of_this_command()};
  if (!token.empty()) add(command, {kLaunchedTask, token});
  add(command, {"--nodes=" + std::to_string(launch.nodes)});
  for (const CommandOptions::Given& each : options.given) {
    if (std::ranges::find(kOfThisOne, each.name) != kOfThisOne.end()) continue;
    if (is_unused(options, each)) continue;
    add(command, {"--" + each.name + (row_of_option(each.name).value == nullptr ? "" : "=" + each.value)});
  }
  if (restarts != 0) add(command, {"--restart=" + std::to_string(restarts)});
  add(command, {"--"});
  for (const std::string& word : options.command)
    command.push_back(!token.empty() && is_separator(word) ? kEscape + word : word);
  return command;
}

std::string word_of_task(const std::string& word) {
  return is_separator(word) && word.front() == kEscape ? word.substr(1) : word;
}

std::string describe_launch(const CommandOptions& options, const Launch& launch) {
  const auto nodes = static_cast<std::size_t>(launch.nodes);
  const bool has_hosts = launch.hosts.size() >= nodes;
  const std::span<const std::string> hosts = has_hosts ? std::span(launch.hosts).first(nodes) : std::span(launch.hosts);
  std::string text = "launcher: " + name_of(launch) + ", " + std::to_string(launch.nodes) +
                     (launch.nodes == 1 ? " node" : " nodes") + (hosts.empty() ? "" : ": " + text::joined(hosts, ",")) +
                     "\n";
  if (launch.hosts.size() > nodes)
    text += "spare nodes: " + text::joined(std::span(launch.hosts).subspan(nodes), ",") + "\n";
  text += "command:\n ";
  for (const std::string& word :
       engine_command(launch, launch.nodes, hosts, task_command(options, launch, options.restart, "")))
    text.append(" ").append(shell_word(word));
  return text + "\n";
}

int signal_for_engine(Launcher launcher, int signal) noexcept {
  const int meant = signal == SIGHUP || signal == SIGQUIT ? SIGTERM : signal;
  switch (launcher) {
    case Launcher::srun: return meant == SIGUSR1 || meant == SIGUSR2 ? meant : 0;
    case Launcher::open_mpi: return meant == SIGTERM ? SIGURG : meant == SIGINT ? SIGALRM : meant;
    case Launcher::hydra: return meant == SIGUSR2 ? SIGQUIT : meant;
  }
  return 0;
}

int signal_from_engine(nodes::EngineKind kind, int signal) noexcept {
  if (kind == nodes::EngineKind::open_mpi) return signal == SIGURG ? SIGTERM : signal == SIGALRM ? SIGINT : signal;
  if (kind == nodes::EngineKind::hydra) return signal == SIGQUIT ? SIGUSR2 : signal;
  return signal;
}

}  // namespace syncrun::detail::master::command_line
