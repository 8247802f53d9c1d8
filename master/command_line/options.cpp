#include "master/command_line/options.hpp"

#include <getopt.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "master/command_line/config_file.hpp"
#include "master/command_line/environment_file.hpp"
#include "master/command_line/foreign_options.hpp"
#include "master/command_line/option_table.hpp"
#include "master/devices/device_list.hpp"
#include "master/devices/devices.hpp"
#include "master/devices/rank_devices.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// What getopt returns for the first row that has no letter. The next rows follow.
constexpr int kFirstRow = 256;
/// What getopt returns for an option of another tool that means nothing here.
constexpr int kNothing = 255;

std::size_t row_named(std::string_view name) {
  const auto table = option_table();
  const auto found = std::ranges::find(table, name, &OptionRow::name);
  return static_cast<std::size_t>(found - table.begin());
}

/// The rows for getopt, with an empty one at the end.
std::vector<option> long_options() {
  std::vector<option> options;
  for (const OptionRow& row : option_table()) {
    options.push_back({row.name, row.value == nullptr ? no_argument : required_argument, nullptr,
                       kFirstRow + static_cast<int>(options.size())});
  }
  for (const Alias& alias : aliases()) {
    if (alias.means == nullptr) {
      options.push_back({alias.name, no_argument, nullptr, kNothing});
      continue;
    }
    const std::size_t row = row_named(alias.means);
    options.push_back({alias.name, options[row].has_arg, nullptr, kFirstRow + static_cast<int>(row)});
  }
  options.push_back({});
  return options;
}

/// '+': stop at the program's name. ':': distinguish a missing value from an unknown option.
std::string short_options() {
  std::string letters = "+:";
  for (const OptionRow& row : option_table()) {
    if (row.letter == 0) continue;
    letters += row.letter;
    if (row.value != nullptr) letters += ':';
  }
  return letters;
}

const OptionRow& row_of(int which) {
  const auto table = option_table();
  if (which >= kFirstRow) return table[static_cast<std::size_t>(which - kFirstRow)];
  return *std::ranges::find(table, which, &OptionRow::letter);
}

std::string name_of(const OptionRow& row) {
  return row.letter != 0 && row.variable != nullptr ? std::string("-") + row.letter : std::string("--") + row.name;
}

/// `name` is for messages.
void accept_option(CommandOptions& options, const OptionRow& row, const std::string& name, const std::string& value,
                   const std::string& source) {
  std::string text = row.take(options, name, value);
  options.given.push_back({row.name, value, source});
  if (row.variable == nullptr) return;
  std::erase_if(options.variables, [&](const auto& other) { return other.first == row.variable; });
  options.variables.emplace_back(row.variable, std::move(text));
}

/// The names of all options, without "--".
std::vector<std::string_view> own_options() {
  std::vector<std::string_view> names;
  for (const OptionRow& row : option_table()) names.emplace_back(row.name);
  return names;
}

[[noreturn]] void throw_bad_option(int which, const std::string& word) {
  if (which == ':') text::throw_usage("option " + word + ": expected a value after it, got none");
  const std::string advice = advice_on_option(word, own_options());
  text::throw_usage("expected an option of syncrun (see syncrun --help), got '" + word + "'" +
                    (advice.empty() ? "" : "; " + advice));
}

// ---- devices --------------------------------------------------------------------------------------------------

/// Whether -n says the same as the list of devices.
bool agrees(const std::string& processes, const std::vector<devices::DeviceId>& devices) {
  if (processes != "cpu" && processes != "gpu") return processes == std::to_string(devices.size());
  const DeviceKind wanted = processes == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  return std::ranges::all_of(devices, [&](const devices::DeviceId& device) { return device.kind == wanted; });
}

/// "2 CPU devices", or "2 devices of both kinds".
std::string count_in_words(const std::vector<devices::DeviceId>& devices) {
  const protocol::DeviceKinds kinds = devices::RankDevices(devices).kinds();
  const std::string count = std::to_string(devices.size());
  if (kinds.is_mixed()) return count + " devices of both kinds";
  return count + (kinds.has(DeviceKind::cpu) ? " CPU" : " CUDA") + " device" + (devices.size() == 1 ? "" : "s");
}

/// If -n is given too, it must agree with the devices.
void check_agreement(const std::string& list, const std::string& processes,
                     const std::vector<devices::DeviceId>& devices) {
  if (processes.empty() || processes == "auto" || agrees(processes, devices)) return;
  text::throw_usage("-n and --devices disagree: got -n " + processes + " and " + count_in_words(devices) + " (" + list +
                    "); expected one of the two, or equal numbers");
}

/// Checks how the devices are written. This machine need not have them.
void check_words_for_devices(const std::string& list, const std::string& processes) {
  const bool is_word = processes.empty() || processes == "cpu" || processes == "gpu" || processes == "auto";
  if (!is_word) devices::check_count(devices::kFromCommandLine.processes, processes);
  if (list.empty() || list.find(':') != std::string::npos) return;
  check_agreement(list, processes, devices::parse_device_list(devices::kFromCommandLine.devices, list).by_rank);
}

}  // namespace

std::string CommandOptions::value_of(const char* variable) const {
  const auto found = std::ranges::find_if(variables, [variable](const auto& each) { return each.first == variable; });
  return found == variables.end() ? std::string() : found->second;
}

std::string CommandOptions::effective(const char* variable) const {
  const char* const value = environment::get(variable);
  std::string given = value_of(variable);
  return !given.empty() || value == nullptr ? given : value;
}

bool CommandOptions::is_given(std::string_view name) const {
  return std::ranges::any_of(given, [name](const Given& each) { return each.name == name; });
}

void CommandOptions::note_variable(const std::string& name, const std::string& source) {
  std::erase_if(program_variables, [&](const Given& each) { return each.name == name; });
  program_variables.push_back({name, std::getenv(name.c_str()), source});
}

namespace {

/// Options of other tools begin with one dash or have '_' in their names. Writes the word as getopt reads it. It must
/// live as long as getopt uses it.
void respell(char*& word, std::deque<std::string>& respelled) {
  const std::string spelled = own_spelling(word);
  if (spelled == word) return;
  word = respelled.emplace_back(spelled).data();
}

/// getopt takes the beginning of a long option for the option. `--error`, of srun, would be `--error-file`.
bool is_whole(std::string_view word, const std::vector<option>& long_names) {
  if (!word.starts_with("--") || word.size() == 2) return true;
  const std::string_view name = word.substr(2, word.find('=') - 2);
  return std::ranges::any_of(long_names,
                             [name](const option& each) { return each.name != nullptr && each.name == name; });
}

bool ends_early(const CommandOptions& options) {
  return options.action == CommandOptions::Action::version || options.action == CommandOptions::Action::help;
}

void read_words(CommandOptions& options, int argc, std::vector<char*>& words) {
  const auto long_names = long_options();
  const std::string letters = short_options();
  std::deque<std::string> respelled;
  ::optind = 0;  // GNU: starts from the beginning
  ::opterr = 0;  // we report errors ourselves
  while (!ends_early(options)) {
    const int at = ::optind == 0 ? 1 : ::optind;
    const std::string written = at < argc ? words[static_cast<std::size_t>(at)] : "";
    if (at < argc) {
      respell(words[static_cast<std::size_t>(at)], respelled);
      if (!is_whole(words[static_cast<std::size_t>(at)], long_names)) throw_bad_option('?', written);
    }
    const int which = ::getopt_long(argc, words.data(), letters.c_str(), long_names.data(), nullptr);
    if (which == -1) break;
    if (which == kNothing) continue;
    // getopt takes -np2 for -n with the value p2, and -hostfile for -h.
    const bool is_np = written.starts_with("-np") && written != "-np";
    if (which == '?' || which == ':' || is_np || written.starts_with("-host"))
      throw_bad_option(which, is_np ? "-np" : written);
    const OptionRow& row = row_of(which);
    accept_option(options, row, name_of(row), ::optarg == nullptr ? "" : ::optarg, kCommandLineSource);
  }
}

/// Whether the user has chosen the devices in a place that comes before the file.
bool has_device_choice(const CommandOptions& options) {
  const auto is_set = [&](const char* variable) { return !options.effective(variable).empty(); };
  return is_set(environment::kDevices) || is_set(environment::kProcesses) || is_set(environment::kContexts);
}

/// A variable that is set comes before the one in the file.
void take_variable(CommandOptions& options, const ConfigEntry& entry) {
  const auto has_name = [&](const CommandOptions::Given& each) { return each.name == entry.name; };
  if (std::getenv(entry.name.c_str()) == nullptr) {
    set_environment(entry.place, entry.name + "=" + entry.value);
    options.note_variable(entry.name, entry.place);
  } else if (std::ranges::none_of(options.program_variables, has_name)) {
    options.note_variable(entry.name, "environment");
  }
}

/// Takes what the file says, unless the command line or the environment says something else.
void read_config(CommandOptions& options) {
  const bool has_devices = has_device_choice(options);
  for (const ConfigEntry& entry : read_config_file(config_path())) {
    if (entry.is_variable) {
      take_variable(options, entry);
      continue;
    }
    const auto table = option_table();
    const std::size_t at = row_named(entry.name);
    if (at == table.size() || table[at].is_for_command_line) {
      const std::string advice = at == table.size() ? advice_on_option("--" + entry.name, own_options()) : "";
      text::throw_usage(entry.place + ": expected the name of an option (see syncrun --help), got '" + entry.name +
                        "'" + (advice.empty() ? "" : "; " + advice));
    }
    const OptionRow& row = table[at];
    const bool is_switch = row.value == nullptr;
    if (is_switch != entry.is_switch) {
      text::throw_usage(entry.place + ": " + entry.name + ": expected " +
                        (is_switch ? "true or false" : std::string("a value (") + row.value + ")") + ", got " +
                        entry.value);
    }
    const bool is_devices = row.variable != nullptr && (std::string_view(row.variable) == environment::kDevices ||
                                                        std::string_view(row.variable) == environment::kProcesses);
    const bool is_hosts = entry.name == "hosts" || entry.name == "hostfile";
    const bool is_overruled = options.is_given(row.name) || (is_hosts && !options.hosts.empty()) ||
                              (is_devices && has_devices) ||
                              (row.variable != nullptr && !options.effective(row.variable).empty());
    if (is_overruled) continue;
    if (is_switch && entry.value == "false") {
      const std::size_t opposite = row_named("no-" + entry.name);
      if (opposite != table.size())
        accept_option(options, table[opposite], entry.place + ": " + entry.name, "", entry.place);
      continue;
    }
    accept_option(options, row, entry.place + ": " + entry.name, is_switch ? "" : entry.value, entry.place);
  }
}

/// In the file, rules for log files say what the user prefers. Most jobs have no log folder. `from` is the place of the
/// first variable that is from the file.
void drop_rules_of_logs(CommandOptions& options, std::size_t from) {
  if (!options.effective(environment::kLogDir).empty()) return;
  const auto is_rule = [](const auto& each) {
    const std::string_view name = each.first;
    return name == environment::kTee || name == environment::kRedirect || name == environment::kLogSize;
  };
  const auto first = options.variables.begin() + static_cast<std::ptrdiff_t>(from);
  options.variables.erase(std::remove_if(first, options.variables.end(), is_rule), options.variables.end());
}

}  // namespace

bool may_be_for_other_machines(const CommandOptions& options) {
  return std::ranges::any_of(options.given, [](const CommandOptions::Given& each) {
    const bool is_for_engine = each.name == "hosts" || each.name == "hostfile" || each.name == "spares" ||
                               each.name == "launcher" || each.name == "launcher-args" || each.name == "nodes";
    return is_for_engine && each.source == kCommandLineSource;
  });
}

void check_devices_of_this_machine(const CommandOptions& options) {
  const std::string devices = options.value_of(environment::kDevices);
  const std::string processes = options.value_of(environment::kProcesses);
  if (devices.empty()) devices::resolve_devices("", processes, devices::kFromCommandLine);
  else check_agreement(devices, processes, devices::resolve_devices(devices, "", devices::kFromCommandLine).by_rank);
}

namespace {

enum class ConfigFile { is_read, is_ignored };

CommandOptions parse(int argc, char** argv, ConfigFile config_file) {
  CommandOptions options;
  std::vector<char*> words(argv, argv + argc);
  words.push_back(nullptr);
  read_words(options, argc, words);
  if (ends_early(options)) return options;
  // In the file, it says which terminal the user prefers. Most jobs have no wrapper.
  const bool has_terminal = !options.value_of(environment::kWrapTerminal).empty();
  const auto before = options.variables.size();
  if (config_file == ConfigFile::is_read) read_config(options);
  drop_rules_of_logs(options, before);
  options.command.assign(argv + ::optind, argv + argc);
  if (has_terminal && options.effective(environment::kWrap).empty())
    text::throw_usage("--wrap-terminal: expected --wrap RANKS:COMMAND with it, got none");
  if (!options.error_file.empty() && options.error_file == options.pid_file)
    text::throw_usage("--error-file and --pid-file: expected two files, got " + options.pid_file + " for both");
  if (options.is_given("hosts") && options.is_given("hostfile"))
    text::throw_usage("--hosts and --hostfile: expected one of the two");
  if (may_be_for_other_machines(options))
    check_words_for_devices(options.value_of(environment::kDevices), options.value_of(environment::kProcesses));
  else check_devices_of_this_machine(options);
  return options;
}

CommandOptions with_program(CommandOptions options) {
  if (options.command.empty() && !ends_early(options))
    text::throw_usage("expected a program to run (syncrun [options] program [arguments]), got none");
  return options;
}

}  // namespace

CommandOptions parse_options(int argc, char** argv) { return parse(argc, argv, ConfigFile::is_read); }

CommandOptions parse_command_line(int argc, char** argv) { return with_program(parse_options(argc, argv)); }

CommandOptions parse_task_command_line(int argc, char** argv) {
  return with_program(parse(argc, argv, ConfigFile::is_ignored));
}

EnvironmentChanges environment_for(const CommandOptions& options) {
  EnvironmentChanges changes;
  for (const OptionRow& row : option_table()) {
    const auto is_same = [&](const auto& other) { return std::string_view(row.variable) == other.first; };
    // --tag and --no-tag have one variable.
    if (row.variable == nullptr || std::ranges::any_of(changes.set, is_same)) continue;
    if (std::string value = options.value_of(row.variable); !value.empty())
      changes.set.emplace_back(row.variable, std::move(value));
  }
  const bool has_devices = !options.value_of(environment::kDevices).empty();
  const bool has_processes = !options.value_of(environment::kProcesses).empty();
  if (!has_devices && has_processes) changes.unset.emplace_back(environment::kDevices);
  if (!has_processes && has_devices) changes.unset.emplace_back(environment::kProcesses);
  if (has_processes || has_devices) changes.unset.emplace_back(environment::kContexts);
  return changes;
}

}  // namespace syncrun::detail::master::command_line
