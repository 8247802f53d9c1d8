#include "master/command_line/foreign_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace syncrun::detail::master::command_line {

namespace {

/// Options of mpirun, srun and torchrun with the meaning of one of ours.
constexpr std::array kAliases{
    Alias{"np", "nproc-per-node"}, Alias{"nnodes", "nodes"},   Alias{"standalone", nullptr},
    Alias{"no-python", nullptr},   Alias{"wdir", "cwd"},       Alias{"chdir", "cwd"},
    Alias{"tag-output", "tag"},    Alias{"label", "tag"},      Alias{"timestamp-output", "timestamps"},
    Alias{"host", "hosts"},        Alias{"nodelist", "hosts"}, Alias{"machinefile", "hostfile"},
    Alias{"num-nodes", "nodes"},
};

constexpr std::string_view kWorkersAdvice = "write -n N for the number of workers on this machine";
constexpr std::string_view kGpusAdvice = "write -n N or -n gpu for the GPUs of this machine";
constexpr std::string_view kNodesAdvice =
    "write --launcher auto --nodes N, or --hosts a,b,c: syncrun then starts the job on several machines";
constexpr std::string_view kBindingAdvice =
    "leave it out: syncrun binds workers by itself, and --bind-to says to what. (It is an option of mpirun or srun, "
    "which stands before syncrun)";
constexpr std::string_view kEngineAdvice =
    "write --launcher-args 'OPTIONS' with --launcher: it is an option of mpirun or srun";
constexpr std::string_view kMeetingAdvice = "leave it out: the workers of a job find each other by themselves";
constexpr std::string_view kLogAdvice =
    "write --log-dir DIR: each rank has a file there, with both of its streams. --tee RANKS chooses the ranks, and "
    "lines of --redirect RANKS are in their files only";
constexpr std::string_view kVariableAdvice =
    "write --env NAME=VALUE for each variable. The program inherits all variables that are set";
constexpr std::string_view kTagAdvice = "leave it out: each line begins with its rank, unless --no-tag is given";
constexpr std::string_view kInputAdvice =
    "write syncrun ... program < FILE. The master reads it, and workers have no input";
constexpr std::string_view kEndAdvice = "leave it out: if a worker fails, syncrun ends the whole job";

/// Words are in small letters, with '-' for '_', and letters as they are. An option with two dashes also stands for that with one.
constexpr auto kForeignOptions = std::to_array<ForeignOption>({
    // How many workers
    {"-np", kWorkersAdvice},  // -np2
    {"-c", kWorkersAdvice},
    {"--n", kWorkersAdvice},
    {"--ntasks", kWorkersAdvice},
    {"--ntasks-per-node", kWorkersAdvice},
    {"--num-processes", kWorkersAdvice},
    {"--ppn", kWorkersAdvice},
    {"--npernode", kWorkersAdvice},
    {"--num-gpus", kGpusAdvice},
    {"--gpus", kGpusAdvice},
    {"--gpus-per-node", kGpusAdvice},
    {"--gpus-per-task", kGpusAdvice},
    {"--gres", kGpusAdvice},
    {"--cpu", "write -n cpu, or name the devices: --devices cpu0,cpu1"},
    {"--oversubscribe", "leave it out: -n may be larger than the number of cores"},
    // Where
    {"-N", kNodesAdvice},
    {"-w", kNodesAdvice},
    {"-H", kNodesAdvice},
    {"-f", kNodesAdvice},
    {"-host", "write --hosts with two dashes"},
    {"-hosts", "write --hosts with two dashes"},
    {"-hostfile", "write --hostfile with two dashes"},
    {"--bind-to", "write --bind-to with two dashes"},
    {"--map-by", kBindingAdvice},
    {"--rank-by", kBindingAdvice},
    {"--cpu-bind", kBindingAdvice},
    {"--cpus-per-task", kBindingAdvice},
    {"--cpus-per-rank", kBindingAdvice},
    {"--mem-bind", kBindingAdvice},
    {"--gpu-bind", kBindingAdvice},
    {"--distribution", kBindingAdvice},
    {"--rankfile", "write --devices with a device for each rank: --devices cuda1,cuda0"},
    {"--display-map", "write --dry-run, which shows the devices by rank"},
    {"--numa-binding", kBindingAdvice},
    {"--use-hwthread-cpus", kBindingAdvice},
    // For the engine
    {"--mca", kEngineAdvice},
    {"--mpi", kEngineAdvice},
    {"--partition", kEngineAdvice},
    {"--exclusive", kEngineAdvice},
    {"--job-name", kEngineAdvice},
    {"--account", kEngineAdvice},
    {"--qos", kEngineAdvice},
    {"--signal", kEngineAdvice},
    {"--prefix", kEngineAdvice},
    {"--allow-run-as-root", "leave it out: syncrun itself may run as root. (mpirun has it, before syncrun)"},
    // How the workers find each other
    {"--node-rank", kMeetingAdvice},
    {"--master-addr", kMeetingAdvice},
    {"--master-port", kMeetingAdvice},
    {"--local-addr", kMeetingAdvice},
    {"--rdzv-backend", kMeetingAdvice},
    {"--rdzv-endpoint", kMeetingAdvice},
    {"--rdzv-id", kMeetingAdvice},
    {"--rdzv-conf", kMeetingAdvice},
    // Output
    {"--redirects", "write --redirect RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"-r", "write --redirect RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"-t", "write --tee RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"--local-ranks-filter", "write --only-rank RANKS"},
    {"--output", kLogAdvice},
    {"--error", kLogAdvice},
    {"-o", kLogAdvice},
    {"-e", kLogAdvice},
    {"--output-filename", kLogAdvice},
    {"-l", kTagAdvice},
    {"--prefix-rank", kTagAdvice},
    {"--log-line-prefix-template", kTagAdvice},
    {"--open-mode", "leave it out: each session begins its files anew. Another --log-dir keeps those of the last one"},
    {"--unbuffered", "leave it out: syncrun shows each line as soon as it is complete"},
    {"-u", "leave it out: syncrun shows each line as soon as it is complete"},
    {"--input", kInputAdvice},
    {"--stdin", kInputAdvice},
    {"--pty", "leave it out: the program has your terminal. --wrap-terminal gives terminals to workers"},
    {"--report-pid", "write --pid-file FILE"},
    {"--xml", "write --json-log for the log, or --error-file FILE for the reason of a failure"},
    {"--xterm", "write --wrap 'RANKS:gdb --args' --wrap-terminal xterm"},
    {"--multi-prog", "all ranks run one program. --wrap RANKS:COMMAND puts a command before the workers of some"},
    // The program
    {"--export", kVariableAdvice},
    {"--genv", kVariableAdvice},
    {"--genvall", kVariableAdvice},
    {"-env", "write --env NAME=VALUE with two dashes"},
    {"-D", "write --cwd DIR"},
    {"--role", "leave it out: the workers of a job have one role"},
    {"--start-method", "leave it out: workers are processes of the program itself"},
    {"--monitor-interval", "leave it out: syncrun sees at once that a process has ended"},
    {"--kill-on-bad-exit", kEndAdvice},
    {"-K", kEndAdvice},
    {"--wait", kEndAdvice},
    {"--signals-to-handle", "leave it out: syncrun passes signals on to the program"},
    {"--time", "write timeout TIME syncrun ... for the whole job, or --timeout SECONDS for each call"},
    {"-m", "name a program: syncrun ... ./program. It does not run modules of Python"},
    {"--module", "name a program: syncrun ... ./program. It does not run modules of Python"},
});

/// How many letters to insert, remove or replace to get from one word to the other.
std::size_t distance_of(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The option of syncrun that is written almost like this word. Empty if no option is.
std::string nearest(std::string_view name, std::span<const std::string_view> own) {
  constexpr std::size_t kMostLetters = 3;
  std::string found;
  std::size_t least = kMostLetters;
  for (const std::string_view each : own) {
    const std::string candidate = "--" + std::string(each);
    const std::size_t distance = distance_of(name, candidate);
    if (distance >= least || distance > candidate.size() / 3) continue;
    least = distance;
    found = candidate;
  }
  return found;
}

}  // namespace

std::span<const Alias> aliases() noexcept { return kAliases; }

std::string own_spelling(std::string_view word) {
  for (const std::string_view one_dash : {"-np", "-wdir", "-tag-output", "-timestamp-output"}) {
    if (word == one_dash) return "-" + std::string(word);
  }
  std::string spelled(word);
  if (!word.starts_with("--")) return spelled;
  std::replace(spelled.begin(), spelled.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())),
               '_', '-');
  return spelled;
}

std::span<const ForeignOption> foreign_options() noexcept { return kForeignOptions; }

std::string advice_on_option(const std::string& word, std::span<const std::string_view> own) {
  std::string name = word.substr(0, word.find('='));
  const bool has_two_dashes = name.starts_with("--");
  const bool has_number = !has_two_dashes && name.size() > 2 && std::isdigit(static_cast<unsigned char>(name[2])) != 0;
  const std::string letter = name.size() == 2 || has_number ? name.substr(0, 2) : "";
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char each) { return each == '_' ? '-' : static_cast<char>(std::tolower(each)); });
  // mpirun accepts long options with one dash too. A number may follow a letter, such as -N2.
  for (const std::string& spelled : {letter.empty() ? name : letter, has_two_dashes ? name : "-" + name}) {
    const auto found = std::ranges::find(kForeignOptions, spelled, &ForeignOption::name);
    if (found != kForeignOptions.end()) return std::string(found->advice);
  }
  if (!has_two_dashes) return {};
  const std::string almost = nearest(name, own);
  return almost.empty() ? std::string() : "did you mean " + almost + "?";
}

}  // namespace syncrun::detail::master::command_line
