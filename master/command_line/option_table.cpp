#include "master/command_line/option_table.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/rank_list.hpp"
#include "master/command_line/environment_file.hpp"
#include "master/command_line/host_list.hpp"
#include "master/devices/binding.hpp"
#include "master/process/output_settings.hpp"
#include "master/settings/metrics_target.hpp"
#include "master/terminals/terminal.hpp"
#include "master/wrappers/wrappers.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// The longest time that an option accepts. Longer times are typing errors, and could not be counted in nanoseconds.
constexpr double kLongestSeconds = 1e9;

constexpr int kMostRestarts = 1'000'000;
constexpr int kMostNodes = 1'000'000;

double seconds_in(const std::string& name, const std::string& text) {
  double seconds = -1;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, seconds, std::chars_format::fixed);
  if (error != std::errc() || end != last || !(seconds >= 0 && seconds <= kLongestSeconds)) {
    text::throw_usage(name + ": expected seconds, such as 30 or 0.5; got '" + text + "'");
  }
  return seconds;
}

/// The text stays as it is, because the master reads it again.
std::string seconds_text(CommandOptions&, const std::string& name, const std::string& text) {
  seconds_in(name, text);
  return text;
}

int whole_number(const std::string& name, const std::string& text, int least, int most) {
  int number = -1;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error == std::errc() && end == last && number >= least && number <= most) return number;
  text::throw_usage(name + ": expected a whole number from " + std::to_string(least) + " to " + std::to_string(most) +
                    ", got '" + text + "'");
}

std::string log_level_text(CommandOptions&, const std::string& name, const std::string& text) {
  if (text::parse_log_level(text)) return text;
  text::throw_usage(name + ": expected trace, debug, info, warning, error or off; got '" + text + "'");
}

/// Makes a path absolute, because the program may change its current folder.
std::string absolute_path(const std::string& name, const std::string& text) {
  std::error_code error;
  const auto path = std::filesystem::absolute(text, error);
  if (error) text::throw_usage(name + ": expected a full path, since the current folder is gone; got '" + text + "'");
  return path.lexically_normal().string();
}

std::string folder_text(CommandOptions&, const std::string& name, const std::string& text) {
  if (text.empty()) text::throw_usage(name + ": expected a folder, got ''");
  return absolute_path(name, text);
}

std::string file_text(CommandOptions&, const std::string& name, const std::string& text) {
  if (text.empty()) text::throw_usage(name + ": expected a file, got ''");
  // In `syncrun --trace ./program`, the name of the file was forgotten.
  if (std::error_code error; std::filesystem::is_regular_file(text, error) && ::access(text.c_str(), X_OK) == 0)
    text::throw_usage(name + ": expected a file to write, got the program '" + text + "'; is the file's name missing?");
  return absolute_path(name, text);
}

std::string metrics_text(CommandOptions& options, const std::string& name, const std::string& text) {
  using Kind = settings::MetricsTarget::Kind;
  const auto target = settings::parse_metrics_target(text);
  if (!target) text::throw_usage(name + ": expected " + settings::kMetricsTargetText + ", got '" + text + "'");
  if (target->kind == Kind::port || text == "-") return text;
  const std::string path = file_text(options, name, target->path);
  if (target->kind == Kind::file) return path;
  if (!settings::parse_metrics_target("unix:" + path))
    text::throw_usage(name + ": expected a shorter path, as that of a socket has at most 107 bytes; got '" + path +
                      "'");
  return "unix:" + path;
}

std::string not_empty(CommandOptions&, const std::string& name, const std::string& text) {
  if (text.empty()) text::throw_usage(name + ": expected a value, got ''");
  return text;
}

/// The option may be given several times. Each is a line of the variable.
std::string wrappers_text(CommandOptions& options, const std::string&, const std::string& text) {
  const std::string before = options.value_of(environment::kWrap);
  std::string all = before.empty() ? text : before + "\n" + text;
  if (text.empty()) text::throw_usage("--wrap: expected RANKS:COMMAND, such as '0:valgrind', got ''");
  static_cast<void>(wrappers::Wrappers::read(all, ""));
  return all;
}

/// For an option that makes `syncrun` do something else.
template <CommandOptions::Action kAction>
std::string choose(CommandOptions& options, const std::string&, const std::string&) {
  options.action = kAction;
  return {};
}

using Action = CommandOptions::Action;

/// For an option without a value. Its variable gets this one.
template <bool kIsOn>
std::string switched(CommandOptions&, const std::string&, const std::string&) {
  return kIsOn ? "on" : "off";
}

std::string ranks_text(CommandOptions&, const std::string& name, const std::string& text) {
  if (text::RankList::parse(text)) return text;
  text::throw_usage(name + ": expected " + text::kRankListForm + "; got '" + text + "'");
}

std::string log_limit_text(CommandOptions&, const std::string& name, const std::string& text) {
  if (process::parse_log_limit(text)) return text;
  text::throw_usage(name + ": expected " + process::kLogLimitForm + "; got '" + text + "'");
}

/// All processes of the job write their log lines in this form, and this one from now on.
std::string choose_json_log(CommandOptions&, const std::string&, const std::string&) {
  ::setenv(text::kJsonLogVariable, "on", 1);
  return "on";
}

/// Sets a variable of this process. The program inherits it.
std::string set_variable(CommandOptions& options, const std::string& name, const std::string& text) {
  options.note_variable(set_environment(name, text), "command line");
  return text;
}

std::string set_variables_of_file(CommandOptions& options, const std::string& name, const std::string& text) {
  for (const auto& [variable, place] : set_environment_from_file(name, text)) options.note_variable(variable, place);
  return text;
}

constexpr std::array kOptions{
    OptionRow{"nproc-per-node", 'n', "N|cpu|gpu|auto", environment::kProcesses, not_empty,
              "number of workers: a number, one per core, one per GPU,\n"
              "or GPUs if there are any and cores otherwise (default: auto)",
              "auto"},
    OptionRow{"devices", 0, "LIST", environment::kDevices, not_empty,
              "devices by rank: cpu0,cpu1 or cuda0,cpu0; with names:\ndev0=cuda0,dev1=cuda1"},
    OptionRow{"bind-to", 0, "none|core|socket|numa|device", environment::kBindTo,
              [](CommandOptions&, const std::string& name, const std::string& value) {
                if (devices::parse_bind_to(value)) return value;
                text::throw_usage(name + ": expected " + std::string(devices::kBindToWords) + ", got '" + value + "'");
              },
              "bind workers to cores\n"
              "(default: a worker's NUMA node, if its share of the cores is in one)"},
    OptionRow{"report-bindings", 0, nullptr, environment::kReportBindings, switched<true>,
              "print at the start which rank may run on which cores", "false"},
    OptionRow{"timeout", 0, "SECONDS", environment::kTimeout, seconds_text,
              "deadline of a call; 0 turns it off (default: 600)", "600"},
    OptionRow{"start-timeout", 0, "SECONDS", environment::kStartTimeout, seconds_text,
              "deadline for all workers to be ready; 0 turns it off (default: 60)", "60"},
    OptionRow{"log-dir", 0, "DIR", environment::kLogDir, folder_text,
              "write the output of each worker to a file in DIR"},
    OptionRow{"tee", 0, "RANKS", environment::kTee, ranks_text,
              "with --log-dir: only these ranks have a file (default: all)", "all"},
    OptionRow{"redirect", 0, "RANKS", environment::kRedirect, ranks_text,
              "with --log-dir: the lines of these ranks are in their files only"},
    OptionRow{"log-size", 0, "SIZE[:N]", environment::kLogSize, log_limit_text,
              "with --log-dir: a file of this size (100M) becomes rank0.log.1 and\n"
              "so on; N old files are kept (default: no limit; 3)"},
    OptionRow{"only-rank", 0, "RANKS", environment::kOnlyRank, ranks_text,
              "show only the lines of these ranks, such as 0,2-5 (default: all)", "all"},
    OptionRow{"tag", 0, nullptr, environment::kTag, switched<true>,
              "begin each line of a worker with its rank (the default)", "true"},
    OptionRow{"no-tag", 0, nullptr, environment::kTag, switched<false>, "do not begin lines with the rank"},
    OptionRow{"timestamps", 0, nullptr, environment::kTimestamps, switched<true>,
              "begin each line of a worker with the time, in UTC", "false"},
    OptionRow{"json-log", 0, nullptr, text::kJsonLogVariable, choose_json_log,
              "write the lines of Syncrun's own log as JSON", "false"},
    OptionRow{"error-file", 0, "FILE", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                return options.error_file = file_text(options, name, value);
              },
              "if the job fails, say why in FILE, as JSON"},
    OptionRow{"pid-file", 0, "FILE", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                return options.pid_file = file_text(options, name, value);
              },
              "write the process id of syncrun to FILE while the job runs"},
    OptionRow{"env", 'x', "NAME[=VALUE]", nullptr, set_variable, "set an environment variable for the program", nullptr,
              true},
    OptionRow{"env-file", 0, "FILE", nullptr, set_variables_of_file,
              "set those in FILE: lines NAME=VALUE, and comments that begin with #", nullptr, true},
    OptionRow{"cwd", 0, "DIR", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.folder = folder_text(options, name, value);
                if (!std::filesystem::is_directory(options.folder)) {
                  text::throw_usage(name + ": expected a folder that exists, got '" + value + "'");
                }
                return options.folder;
              },
              "run the program in DIR"},
    OptionRow{"log-level", 0, "LEVEL", environment::kLogLevel, log_level_text,
              "trace, debug, info, warning, error or off (default: warning)", "warning"},
    OptionRow{"grace", 0, "SECONDS", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.grace = std::chrono::milliseconds(static_cast<std::int64_t>(seconds_in(name, value) * 1000));
                return value;
              },
              "after a signal, kill everything after this time (default: 5, or none on several nodes)", "5"},
    OptionRow{"nodes", 0, "N", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                if (value.find(':') != std::string::npos) {
                  text::throw_usage(
                      name + ": expected one number, got '" + value +
                      "'; the number of nodes is fixed. --spares N lets some of --hosts wait for a restart");
                }
                options.nodes = whole_number(name, value, 1, kMostNodes);
                return value;
              },
              "the number of nodes; without --launcher, check that srun or mpirun has\n"
              "started one task on each of them"},
    OptionRow{"launcher", 0, "srun|mpirun|ssh|auto", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                const std::string_view program = std::string_view(value).substr(value.rfind('/') + 1);
                const bool is_known = value == "auto" || value == "ssh" || value == "none" || program == "srun" ||
                                      program.starts_with("mpirun") || program.starts_with("mpiexec");
                if (is_known) return options.launcher = value;
                text::throw_usage(name + ": expected srun, mpirun, ssh, auto, none or the path of an mpirun, got '" +
                                  value + "'");
              },
              "start the job on several nodes, with Slurm's srun, with mpirun, or with\n"
              "mpirun through ssh; auto takes what is there"},
    OptionRow{"hosts", 0, "LIST", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.hosts = hosts_in_list(name, value);
                return value;
              },
              "the hosts of the nodes: a,b,c (default: those of the scheduler)"},
    OptionRow{"hostfile", 0, "FILE", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.hosts = hosts_in_file(name, value);
                return value;
              },
              "the same, with one host in each line"},
    OptionRow{"spares", 0, "N", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.spares = whole_number(name, value, 0, kMostNodes);
                return value;
              },
              "the last N hosts wait to take the place of a lost one at a restart (default: 0)", "0"},
    OptionRow{"launcher-args", 0, "WORDS", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.launcher_words = words_for_launcher(name, value);
                return value;
              },
              "more options for srun or mpirun, such as '--partition gpu --time 2:00:00'"},
    OptionRow{"node-timeout", 0, "SECONDS", environment::kNodeTimeout, seconds_text,
              "a node of which nothing is heard for this long is lost (default: 3)", "3"},
    OptionRow{"tree-from", 0, "N", environment::kTreeFrom,
              [](CommandOptions&, const std::string& name, const std::string& value) {
                return std::to_string(whole_number(name, value, 2, kMostNodes));
              },
              "from N nodes on, nodes pass messages on along a tree (default: 16)", "16"},
    OptionRow{"max-restarts", 0, "N", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.max_restarts = whole_number(name, value, 0, kMostRestarts);
                return value;
              },
              "restart the program when it fails, at most N times (default: 0)", "0"},
    OptionRow{"restart", 0, "N", nullptr,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                options.restart = whole_number(name, value, 0, kMostRestarts);
                return value;
              },
              "this is restart N, by a script: syncrun::restarts() returns it (default: 0)", nullptr, true},
    OptionRow{"profile", 0, "FILE", environment::kProfile,
              [](CommandOptions& options, const std::string& name, const std::string& value) {
                return value == "-" ? value : file_text(options, name, value);
              },
              "write a table of where the time of calls went; - is standard error;\nFILE.json: for syncrun report"},
    OptionRow{"trace", 0, "FILE", environment::kTrace, file_text,
              "write a trace of all calls, for Perfetto or chrome://tracing"},
    OptionRow{"metrics", 0, "FILE|unix:PATH|PORT", environment::kMetrics, metrics_text,
              "offer metrics for Prometheus: in a file, on a socket, or on a port\nof 127.0.0.1; - is standard error"},
    OptionRow{"wrap", 0, "RANKS:COMMAND", environment::kWrap, wrappers_text,
              "run the workers of these ranks (0 or 0,2-3 or *) under a command, such as\n"
              "'*:valgrind' or '0:gdb -batch -ex run -ex \"thread apply all bt\" --args';\n"
              "may be repeated"},
    OptionRow{
        "wrap-terminal", 0, "tmux|xterm", environment::kWrapTerminal,
        [](CommandOptions&, const std::string&, const std::string& value) { return terminals::command_for(value); },
        "give each wrapped rank a terminal of its own, such as for '0:gdb --args'"},
    OptionRow{"quiet", 0, nullptr, environment::kQuiet, switched<true>,
              "do not print at the start which rank is on which device", "false"},
    OptionRow{"dry-run", 0, nullptr, nullptr, choose<Action::dry_run>, "print what would be started, and start nothing",
              nullptr, true},
    OptionRow{"version", 0, nullptr, nullptr, choose<Action::version>, "print the version", nullptr, true},
    OptionRow{"help", 'h', nullptr, nullptr, choose<Action::help>, "print this", nullptr, true},
};

}  // namespace

std::span<const OptionRow> option_table() noexcept { return kOptions; }

}  // namespace syncrun::detail::master::command_line
