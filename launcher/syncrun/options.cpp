#include "launcher/syncrun/options.hpp"

#include <getopt.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "launcher/devices/devices.hpp"
#include "launcher/devices/rank_devices.hpp"

namespace syncrun::detail {

namespace {

/// The longest time that an option accepts. Longer times are typing errors, and could not be counted in nanoseconds.
constexpr double kLongestSeconds = 1e9;

constexpr int kMostRestarts = 1'000'000;
constexpr int kMostNodes = 1'000'000;

enum Option : int {
  kDevicesOption = 256,
  kTimeoutOption,
  kStartTimeoutOption,
  kLogDirOption,
  kLogLevelOption,
  kGraceOption,
  kMaxRestartsOption,
  kRestartOption,
  kProfileOption,
  kTraceOption,
  kQuietOption,
  kNodesOption,
  kNodeTimeoutOption,
  kTreeFromOption,
  kDryRunOption,
  kVersionOption,
};

constexpr std::array<option, 19> kLongOptions{{
    {"nproc-per-node", required_argument, nullptr, 'n'},
    {"devices", required_argument, nullptr, kDevicesOption},
    {"timeout", required_argument, nullptr, kTimeoutOption},
    {"start-timeout", required_argument, nullptr, kStartTimeoutOption},
    {"log-dir", required_argument, nullptr, kLogDirOption},
    {"log-level", required_argument, nullptr, kLogLevelOption},
    {"grace", required_argument, nullptr, kGraceOption},
    {"max-restarts", required_argument, nullptr, kMaxRestartsOption},
    {"restart", required_argument, nullptr, kRestartOption},
    {"profile", required_argument, nullptr, kProfileOption},
    {"trace", required_argument, nullptr, kTraceOption},
    {"quiet", no_argument, nullptr, kQuietOption},
    {"nodes", required_argument, nullptr, kNodesOption},
    {"node-timeout", required_argument, nullptr, kNodeTimeoutOption},
    {"tree-from", required_argument, nullptr, kTreeFromOption},
    {"dry-run", no_argument, nullptr, kDryRunOption},
    {"version", no_argument, nullptr, kVersionOption},
    {"help", no_argument, nullptr, 'h'},
    {nullptr, 0, nullptr, 0},
}};

/// Checks a number of seconds and returns the text unchanged, because the master reads it again.
std::string seconds_text(const std::string& name, const std::string& text, double* value = nullptr) {
  double seconds = -1;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, seconds, std::chars_format::fixed);
  if (error != std::errc() || end != last || !(seconds >= 0 && seconds <= kLongestSeconds)) {
    throw_usage(name + ": expected seconds, such as 30 or 0.5; got '" + text + "'");
  }
  if (value != nullptr) *value = seconds;
  return text;
}

std::chrono::milliseconds grace_of(const std::string& text) {
  double seconds = 0;
  seconds_text("--grace", text, &seconds);
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

int whole_number(const std::string& name, const std::string& text, int least, int most) {
  int number = -1;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error == std::errc() && end == last && number >= least && number <= most) return number;
  throw_usage(name + ": expected a whole number from " + std::to_string(least) + " to " + std::to_string(most) +
              ", got '" + text + "'");
}

std::string log_level_text(const std::string& text) {
  if (parse_log_level(text)) return text;
  throw_usage("--log-level: expected trace, debug, info, warning, error or off; got '" + text + "'");
}

/// Makes a path absolute, because the program may change its current folder.
std::string absolute_path(const std::string& name, const std::string& text) {
  std::error_code error;
  const auto path = std::filesystem::absolute(text, error);
  if (error) throw_usage(name + ": expected a full path, since the current folder is gone; got '" + text + "'");
  return path.lexically_normal().string();
}

std::string log_dir_text(const std::string& text) {
  if (text.empty()) throw_usage("--log-dir: expected a folder, got ''");
  return absolute_path("--log-dir", text);
}

std::string file_text(const std::string& name, const std::string& text) {
  if (text.empty()) throw_usage(name + ": expected a file, got ''");
  return absolute_path(name, text);
}

std::string not_empty(const std::string& name, const std::string& text) {
  if (text.empty()) throw_usage(name + ": expected a value, got ''");
  return text;
}

void accept_option(CommandOptions& options, int which, const std::string& value) {
  using Action = CommandOptions::Action;
  switch (which) {
    case 'n': options.processes = not_empty("-n", value); break;
    case kDevicesOption: options.devices = not_empty("--devices", value); break;
    case kTimeoutOption: options.timeout = seconds_text("--timeout", value); break;
    case kStartTimeoutOption: options.start_timeout = seconds_text("--start-timeout", value); break;
    case kLogDirOption: options.log_dir = log_dir_text(value); break;
    case kLogLevelOption: options.log_level = log_level_text(value); break;
    case kGraceOption: options.grace = grace_of(value); break;
    case kMaxRestartsOption: options.max_restarts = whole_number("--max-restarts", value, 0, kMostRestarts); break;
    case kRestartOption: options.restart = whole_number("--restart", value, 0, kMostRestarts); break;
    case kProfileOption: options.profile = value == "-" ? value : file_text("--profile", value); break;
    case kTraceOption: options.trace = file_text("--trace", value); break;
    case kNodesOption: options.nodes = whole_number("--nodes", value, 1, kMostNodes); break;
    case kNodeTimeoutOption: options.node_timeout = seconds_text("--node-timeout", value); break;
    case kTreeFromOption: options.tree_from = std::to_string(whole_number("--tree-from", value, 2, kMostNodes)); break;
    case kQuietOption: options.is_quiet = true; break;
    case kDryRunOption: options.action = Action::dry_run; break;
    case kVersionOption: options.action = Action::version; break;
    default: options.action = Action::help; break;
  }
}

/// Options of mpirun, srun, torchrun and the like that users try here, and what to do in Syncrun.
struct ForeignOption {
  std::string_view name;  // in small letters, with '-' for '_'
  std::string_view advice;
};
constexpr std::string_view kWorkersAdvice = "write -n N for the number of workers on this machine";
constexpr std::string_view kNodesAdvice =
    "on several machines, an engine starts syncrun: srun -N NODES --mpi=pmix syncrun program, or mpirun -H HOSTS "
    "--map-by "
    "ppr:1:node --bind-to none syncrun program";
constexpr std::string_view kBindingAdvice =
    "leave it out: syncrun binds workers to the cores of a NUMA node by itself. (It is an option of mpirun or srun, "
    "which "
    "stands before syncrun)";
constexpr std::string_view kMeetingAdvice = "leave it out: the workers of a job find each other by themselves";
constexpr std::array<ForeignOption, 34> kForeignOptions{{
    {"-np", kWorkersAdvice},
    {"-c", kWorkersAdvice},
    {"--np", kWorkersAdvice},
    {"--n", kWorkersAdvice},
    {"--ntasks", kWorkersAdvice},
    {"--ntasks-per-node", kWorkersAdvice},
    {"--num-processes", kWorkersAdvice},
    {"--num-gpus", "write -n N or -n gpu for the GPUs of this machine"},
    {"--gpus", "write -n N or -n gpu for the GPUs of this machine"},
    {"--gpus-per-node", "write -n N or -n gpu for the GPUs of this machine"},
    {"--cpu", "write -n cpu, or name the devices: --devices cpu0,cpu1"},
    {"--nnodes", kNodesAdvice},
    {"--num-nodes", kNodesAdvice},
    {"-h", kNodesAdvice},
    {"--host", kNodesAdvice},
    {"--hosts", kNodesAdvice},
    {"-hosts", kNodesAdvice},
    {"--hostfile", kNodesAdvice},
    {"-hostfile", kNodesAdvice},
    {"--machinefile", kNodesAdvice},
    {"-machinefile", kNodesAdvice},
    {"--bind-to", kBindingAdvice},
    {"-bind-to", kBindingAdvice},
    {"--map-by", kBindingAdvice},
    {"--cpu-bind", kBindingAdvice},
    {"--cpus-per-task", kBindingAdvice},
    {"--standalone", kMeetingAdvice},
    {"--node-rank", kMeetingAdvice},
    {"--master-addr", kMeetingAdvice},
    {"--master-port", kMeetingAdvice},
    {"--rdzv-backend", kMeetingAdvice},
    {"--rdzv-endpoint", kMeetingAdvice},
    {"--rdzv-id", kMeetingAdvice},
    {"--oversubscribe", "leave it out: -n may be larger than the number of cores"},
}};

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

/// The option of `syncrun` that is written almost like this one. Empty if there is none.
std::string nearest_option(std::string_view name) {
  constexpr std::size_t kMostLetters = 3;
  std::string nearest;
  std::size_t least = kMostLetters;
  for (const option& each : kLongOptions) {
    if (each.name == nullptr) continue;
    const std::string candidate = std::string("--") + each.name;
    const std::size_t distance = distance_of(name, candidate);
    if (distance >= least || distance > candidate.size() / 3) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

/// What to write in place of an option that `syncrun` does not have. Empty if there is no advice.
std::string advice_on(const std::string& word) {
  std::string name = word.substr(0, word.find('='));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return letter == '_' ? '-' : static_cast<char>(std::tolower(letter)); });
  const auto found = std::find_if(kForeignOptions.begin(), kForeignOptions.end(),
                                  [&](const ForeignOption& each) { return each.name == name; });
  if (found != kForeignOptions.end()) return std::string(found->advice);
  if (!name.starts_with("--")) return {};
  const std::string nearest = nearest_option(name);
  return nearest.empty() ? std::string() : "did you mean " + nearest + "?";
}

[[noreturn]] void throw_bad_option(int which, const std::string& word) {
  if (which == ':') throw_usage("option " + word + ": expected a value after it, got none");
  const std::string advice = advice_on(word);
  throw_usage("expected an option of syncrun (see syncrun --help), got '" + word + "'" +
              (advice.empty() ? "" : "; " + advice));
}

/// Whether -n says the same as the list of devices.
bool agrees(const std::string& processes, const std::vector<DeviceId>& devices) {
  if (processes != "cpu" && processes != "gpu") return processes == std::to_string(devices.size());
  const DeviceKind wanted = processes == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  return std::all_of(devices.begin(), devices.end(), [&](const DeviceId& device) { return device.kind == wanted; });
}

/// "2 CPU devices", or "2 devices of both kinds".
std::string count_in_words(const std::vector<DeviceId>& devices) {
  const DeviceKinds kinds = RankDevices(devices).kinds();
  const std::string count = std::to_string(devices.size());
  if (kinds.is_mixed()) return count + " devices of both kinds";
  return count + (kinds.has(DeviceKind::cpu) ? " CPU" : " CUDA") + " device" + (devices.size() == 1 ? "" : "s");
}

/// Checks that the devices can be used. If -n is given too, it must agree with them.
void check_devices(const CommandOptions& options) {
  const auto devices = resolve_devices(options.devices, "", kFromCommandLine).by_rank;
  if (options.processes.empty() || options.processes == "auto") return;
  if (agrees(options.processes, devices)) return;
  throw_usage("-n and --devices disagree: got -n " + options.processes + " and " + count_in_words(devices) + " (" +
              options.devices + "); expected one of the two, or equal numbers");
}

}  // namespace

CommandOptions parse_command_line(int argc, char** argv) {
  CommandOptions options;
  ::optind = 0;  // GNU: starts from the beginning
  ::opterr = 0;  // we report errors ourselves
  using Action = CommandOptions::Action;
  while (options.action != Action::version && options.action != Action::help) {
    const int at = ::optind == 0 ? 1 : ::optind;
    // '+': stop at the program's name. ':': distinguish a missing value from an unknown option.
    const int which = ::getopt_long(argc, argv, "+:n:h", kLongOptions.data(), nullptr);
    if (which == -1) break;
    // getopt takes -np for -n with the value p, and -hostfile for -h.
    const std::string_view word = argv[at];
    const bool is_np = word.starts_with("-np");
    const bool is_other = is_np || word.starts_with("-host");
    if (which == '?' || which == ':' || is_other) throw_bad_option(which, is_np ? "-np" : argv[at]);
    accept_option(options, which, ::optarg == nullptr ? "" : ::optarg);
  }
  if (options.action == Action::version || options.action == Action::help) return options;

  options.command.assign(argv + ::optind, argv + argc);
  if (options.command.empty())
    throw_usage("expected a program to run (syncrun [options] program [arguments]), got none");
  if (options.devices.empty()) resolve_devices("", options.processes, kFromCommandLine);
  else check_devices(options);
  return options;
}

EnvironmentChanges environment_for(const CommandOptions& options) {
  EnvironmentChanges changes;
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) changes.set.emplace_back(name, value);
  };
  set(environment::kDevices, options.devices);
  set(environment::kProcesses, options.processes);
  set(environment::kTimeout, options.timeout);
  set(environment::kStartTimeout, options.start_timeout);
  set(environment::kLogDir, options.log_dir);
  set(environment::kLogLevel, options.log_level);
  set(environment::kProfile, options.profile);
  set(environment::kTrace, options.trace);
  set(environment::kNodeTimeout, options.node_timeout);
  set(environment::kTreeFrom, options.tree_from);
  set(environment::kQuiet, options.is_quiet ? "1" : "");
  if (options.devices.empty() && !options.processes.empty()) changes.unset.emplace_back(environment::kDevices);
  if (options.processes.empty() && !options.devices.empty()) changes.unset.emplace_back(environment::kProcesses);
  if (!options.processes.empty() || !options.devices.empty()) changes.unset.emplace_back(environment::kContexts);
  return changes;
}

std::string help_text() {
  return R"(usage: syncrun [options] [--] program [arguments]

Runs a Syncrun program with one worker per device, ends the whole job with it, and says why it failed.
On several nodes: srun -N NODES --mpi=pmix syncrun program, or
mpirun --map-by ppr:1:node --bind-to none -np NODES syncrun program.

  -n, --nproc-per-node N|cpu|gpu|auto  number of workers: a number, one per core, one per GPU,
                                       or GPUs if there are any and cores otherwise (default: auto)
      --devices LIST                   devices by rank: cpu0,cpu1 or cuda0,cpu0; with names:
                                       dev0=cuda0,dev1=cuda1
      --timeout SECONDS                deadline of a call; 0 turns it off (default: 600)
      --start-timeout SECONDS          deadline for all workers to be ready; 0 turns it off (default: 60)
      --log-dir DIR                    write the output of each worker to a file in DIR
      --log-level LEVEL                trace, debug, info, warning, error or off (default: warning)
      --grace SECONDS                  after a signal, kill everything after this time (default: 5)
      --nodes N                        check that srun or mpirun has started one task on each of N nodes
      --node-timeout SECONDS           a node of which nothing is heard for this long is lost (default: 3)
      --tree-from N                    from N nodes on, nodes pass messages on along a tree (default: 16)
      --max-restarts N                 restart the program when it fails, at most N times (default: 0)
      --restart N                      this is restart N, by a script: syncrun::restarts() returns it (default: 0)
      --profile FILE                   write a table of where the time of calls went; - is standard error
      --trace FILE                     write a trace of all calls, for Perfetto or chrome://tracing
      --quiet                          do not print at the start which rank is on which device
      --dry-run                        print what would be started, and start nothing
      --version                        print the version
  -h, --help                           print this

The exit code is the program's; 128+N after signal N; 2: bad options; 125: not a Syncrun program, or
it became a daemon; 126: the program cannot be executed; 127: it was not found.
)";
}

}  // namespace syncrun::detail
