#include "launcher/settings/settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "common/os/environment.hpp"
#include "common/os/memory_limit.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/numbers.hpp"
#include "launcher/devices/host_part.hpp"

namespace syncrun::detail {

namespace {

constexpr Milliseconds kDefaultCallTimeout = std::chrono::minutes(10);
constexpr Milliseconds kDefaultStartTimeout = std::chrono::seconds(60);
constexpr std::int64_t kFewestNodesOfTree = 2;
constexpr std::int64_t kMostNodes = 1'000'000;

std::string from_environment(const char* name) {
  const char* value = environment::get(name);
  return value == nullptr ? std::string() : value;
}

Milliseconds seconds_from_environment(const char* name, Milliseconds otherwise) {
  const std::string text = from_environment(name);
  if (text.empty()) return otherwise;
  const auto seconds = parse_number(text);
  if (!seconds || !(*seconds >= 0) || *seconds > 1e9) {
    environment::throw_bad_value(name, text, "seconds, such as 30 or 0.5");
  }
  return Milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
}

LogLevel log_level_of(const SessionOptions& options) {
  const std::string text = from_environment(environment::kLogLevel);
  if (text.empty()) return options.log_level.value_or(LogLevel::warning);
  if (const auto level = parse_log_level(text)) return *level;
  environment::throw_bad_value(environment::kLogLevel, text, "trace, debug, info, warning, error or off");
}

/// The value of the variable. If it is not set, the option of the program.
std::string text_of(const char* variable, const std::string& option) {
  std::string text = from_environment(variable);
  return text.empty() ? option : text;
}

/// "--devices cpu0,cpu1"
std::string in_words(const DevicesChoice& choice, const DevicesSource& source) {
  const std::string& text = !choice.devices.empty()     ? choice.devices
                            : !choice.processes.empty() ? choice.processes
                                                        : choice.contexts;
  return std::string(deciding_source(choice, source)) + " " + text;
}

void choose_devices(Settings& settings, const SessionOptions& options) {
  const DevicesChoice outside = choice_from_environment();
  const DevicesChoice own{options.devices, options.processes};
  const bool is_outside = outside.is_made();
  const ChosenDevices chosen =
      resolve_devices(is_outside ? outside : own, is_outside ? kFromEnvironment : kFromProgram);
  settings.devices = chosen.by_rank;
  settings.device_names = chosen.names;
  if (!is_outside || !own.is_made() || includes(chosen, resolve_devices(own, kFromProgram))) return;
  const auto& source = supervisor_link().is_connected() ? kFromCommandLine : kFromEnvironment;
  settings.overruled = in_words(own, kFromProgram) + " gives way to " + in_words(outside, source);
}

}  // namespace

Milliseconds check_timeout(Milliseconds timeout, const std::string& option) {
  if (timeout.count() < 0) throw_usage(option + " is at least 0, got " + std::to_string(timeout.count()) + " ms");
  return std::min(timeout, Patience::kLongestLimit);
}

Milliseconds resolve_timeout(const std::optional<Milliseconds>& chosen, const std::string& option) {
  return chosen ? check_timeout(*chosen, option) : seconds_from_environment(environment::kTimeout, kDefaultCallTimeout);
}

Milliseconds resolve_start_timeout(const std::optional<Milliseconds>& chosen, const std::string& option) {
  return chosen ? check_timeout(*chosen, option)
                : seconds_from_environment(environment::kStartTimeout, kDefaultStartTimeout);
}

std::optional<Milliseconds> node_timeout_from_environment() {
  const std::string text = from_environment(environment::kNodeTimeout);
  if (text.empty()) return std::nullopt;
  const auto seconds = parse_number(text);
  if (!seconds || !(*seconds >= 0.5) || *seconds > 1e6) {
    environment::throw_bad_value(environment::kNodeTimeout, text, "seconds from 0.5, such as 3 or 10");
  }
  return Milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
}

namespace {

void choose_tree(Settings& settings) {
  const std::string text = from_environment(environment::kTreeFrom);
  if (text.empty()) return;
  const auto nodes = environment::whole_number(text.c_str());
  if (!nodes || *nodes < kFewestNodesOfTree || *nodes > kMostNodes)
    environment::throw_bad_value(environment::kTreeFrom, text, "a whole number of nodes from 2");
  settings.tree_from = static_cast<int>(*nodes);
}

/// Checks variables that are read later or by other code, so that a mistake shows before anything is started.
void check_variables() {
  static_cast<void>(is_memory_checked());
  static_cast<void>(node_timeout_from_environment());
  const std::string restart = from_environment(environment::kRestart);
  if (restart.empty()) return;
  const auto restarts = environment::whole_number(restart.c_str());
  if (restarts && *restarts >= 0) return;
  environment::throw_bad_value(environment::kRestart, restart,
                               "a whole number from 0, which syncrun --max-restarts sets");
}

}  // namespace

void make_log_folder(const Settings& settings) {
  if (settings.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(settings.log_dir, error);
  if (error) throw_errno("cannot make the log folder " + settings.log_dir, error.value());
}

std::string device_name(const Settings& settings, int rank) {
  std::string name;
  for (const NodePlace& node : settings.nodes) {
    if (node.has(rank)) name = settings.node_names[static_cast<std::size_t>(node.node)] + ":";
  }
  return name + to_string(settings.devices[static_cast<std::size_t>(rank)]);
}

std::vector<std::string> device_names(const Settings& settings) {
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < settings.devices.size(); ++rank)
    names.push_back(device_name(settings, static_cast<int>(rank)));
  return names;
}

Settings resolve_settings(const SessionOptions& options) {
  check_variables();
  Settings settings;
  choose_devices(settings, options);
  settings.node_names = {own_host_name()};
  choose_tree(settings);
  settings.call_timeout = seconds_from_environment(
      environment::kTimeout, check_timeout(options.timeout.value_or(kDefaultCallTimeout), "SessionOptions::timeout"));
  settings.start_timeout = seconds_from_environment(
      environment::kStartTimeout,
      check_timeout(options.start_timeout.value_or(kDefaultStartTimeout), "SessionOptions::start_timeout"));
  settings.grace = check_timeout(options.grace, "SessionOptions::grace");
  settings.on_worker_lost = options.on_worker_lost;
  settings.max_respawns = options.max_respawns;
  if (settings.max_respawns < 0) {
    throw_usage("SessionOptions::max_respawns is at least 0, got " + std::to_string(settings.max_respawns));
  }
  settings.seed = options.seed;
  settings.log_dir = text_of(environment::kLogDir, options.log_dir);
  make_log_folder(settings);
  settings.profile = text_of(environment::kProfile, options.profile);
  settings.trace = text_of(environment::kTrace, options.trace);
  settings.log_level = log_level_of(options);
  return settings;
}

}  // namespace syncrun::detail
