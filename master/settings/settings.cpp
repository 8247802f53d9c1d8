#include "master/settings/settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "common/os/environment.hpp"
#include "common/os/folder_check.hpp"
#include "common/os/interfaces.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/numbers.hpp"
#include "master/devices/binding.hpp"
#include "master/devices/host_part.hpp"

namespace syncrun::detail::master::settings {

namespace {

constexpr os::Milliseconds kDefaultCallTimeout = std::chrono::minutes(10);
constexpr os::Milliseconds kDefaultStartTimeout = std::chrono::seconds(60);
/// A wrapper may write a long report when its worker has ended, or a person may look at it in a debugger.
constexpr os::Milliseconds kWrapperGrace = std::chrono::minutes(10);
constexpr std::int64_t kFewestNodesOfTree = 2;
constexpr std::int64_t kMostNodes = 1'000'000;

std::string from_environment(const char* name) {
  const char* value = environment::get(name);
  return value == nullptr ? std::string() : value;
}

os::Milliseconds seconds_from_environment(const char* name, os::Milliseconds otherwise) {
  const std::string text = from_environment(name);
  if (text.empty()) return otherwise;
  const auto seconds = text::parse_number(text);
  if (!seconds || !(*seconds >= 0) || *seconds > 1e9) {
    environment::throw_bad_value(name, text, "seconds, such as 30 or 0.5");
  }
  return os::Milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
}

LogLevel log_level_of(const SessionOptions& options) {
  const std::string text = from_environment(environment::kLogLevel);
  if (text.empty()) return options.log_level.value_or(LogLevel::warning);
  if (const auto level = text::parse_log_level(text)) return *level;
  environment::throw_bad_value(environment::kLogLevel, text, "trace, debug, info, warning, error or off");
}

std::optional<MetricsTarget> metrics_target_of(const SessionOptions& options) {
  const std::string text = from_environment(environment::kMetrics);
  if (text.empty() && options.metrics.empty()) return std::nullopt;
  const auto target = parse_metrics_target(text.empty() ? options.metrics : text);
  if (target) return target;
  if (!text.empty()) environment::throw_bad_value(environment::kMetrics, text, kMetricsTargetText);
  text::throw_usage("SessionOptions::metrics: expected " + std::string(kMetricsTargetText) + ", got '" +
                    options.metrics + "'");
}

/// The value of the variable. If it is not set, the option of the program.
std::string text_of(const char* variable, const std::string& option) {
  std::string text = from_environment(variable);
  return text.empty() ? option : text;
}

/// "--devices cpu0,cpu1"
std::string in_words(const devices::DevicesChoice& choice, const devices::DevicesSource& source) {
  const std::string& text = !choice.devices.empty()     ? choice.devices
                            : !choice.processes.empty() ? choice.processes
                                                        : choice.contexts;
  return std::string(devices::deciding_source(choice, source)) + " " + text;
}

void choose_devices(Settings& settings, const SessionOptions& options) {
  const devices::DevicesChoice outside = devices::choice_from_environment();
  const devices::DevicesChoice own{options.devices, options.processes};
  const bool is_outside = outside.is_made();
  const devices::ChosenDevices chosen = devices::resolve_devices(
      is_outside ? outside : own, is_outside ? devices::kFromEnvironment : devices::kFromProgram);
  settings.devices = chosen.by_rank;
  settings.device_names = chosen.names;
  if (!is_outside || !own.is_made() || devices::includes(chosen, devices::resolve_devices(own, devices::kFromProgram)))
    return;
  const auto& source =
      protocol::supervisor_link().is_connected() ? devices::kFromCommandLine : devices::kFromEnvironment;
  settings.overruled = in_words(own, devices::kFromProgram) + " gives way to " + in_words(outside, source);
}

}  // namespace

os::Milliseconds check_timeout(os::Milliseconds timeout, const std::string& option) {
  if (timeout.count() < 0) text::throw_usage(option + " is at least 0, got " + std::to_string(timeout.count()) + " ms");
  return std::min(timeout, os::Patience::kLongestLimit);
}

os::Milliseconds resolve_timeout(const std::optional<os::Milliseconds>& chosen, const std::string& option) {
  return chosen ? check_timeout(*chosen, option) : seconds_from_environment(environment::kTimeout, kDefaultCallTimeout);
}

os::Milliseconds resolve_start_timeout(const std::optional<os::Milliseconds>& chosen, const std::string& option) {
  return chosen ? check_timeout(*chosen, option)
                : seconds_from_environment(environment::kStartTimeout, kDefaultStartTimeout);
}

std::optional<os::Milliseconds> node_timeout_from_environment() {
  const std::string text = from_environment(environment::kNodeTimeout);
  if (text.empty()) return std::nullopt;
  const auto seconds = text::parse_number(text);
  if (!seconds || !(*seconds >= 0.5) || *seconds > 1e6) {
    environment::throw_bad_value(environment::kNodeTimeout, text, "seconds from 0.5, such as 3 or 10");
  }
  return os::Milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
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

/// A name of an interface has up to 15 letters.
void choose_node_links(Settings& settings) {
  constexpr std::size_t kLongestName = 15;
  const std::string text = from_environment(environment::kNodeLinks);
  if (text.size() > kLongestName)
    environment::throw_bad_value(environment::kNodeLinks, text, "off, or the name of a network interface");
  settings.has_node_links = text != "off" && text != "0";
  settings.node_silence = node_timeout_from_environment().value_or(settings.node_silence);
  settings.link_interface = text == "on" || text == "1" ? "" : text;
}

/// Checks variables that are read later or by other code, so that a mistake shows before anything is started.
void check_variables() {
  for (const char* name : {environment::kMemoryCheck, environment::kQuiet, environment::kReportBindings})
    static_cast<void>(environment::switch_in(name));
  static_cast<void>(node_timeout_from_environment());
  static_cast<void>(devices::bind_to_from_environment());
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
  if (error) text::throw_errno("cannot make the log folder " + settings.log_dir, error.value());
  if (const auto why = os::why_not_writable(settings.log_dir)) {
    text::throw_usage("the log folder (--log-dir or SessionOptions::log_dir): expected a folder to write in, but " +
                      settings.log_dir + " " + *why);
  }
}

std::string device_name(const Settings& settings, int rank) {
  std::string name;
  for (const protocol::NodePlace& node : settings.nodes) {
    if (node.has_others() && node.has(rank)) name = settings.node_names[static_cast<std::size_t>(node.node)] + ":";
  }
  return name + devices::to_string(settings.devices[static_cast<std::size_t>(rank)]);
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
  settings.nodes = {protocol::NodePlace::alone(static_cast<int>(settings.devices.size()))};
  settings.node_names = {devices::own_host_name()};
  choose_tree(settings);
  choose_node_links(settings);
  settings.call_timeout = seconds_from_environment(
      environment::kTimeout, check_timeout(options.timeout.value_or(kDefaultCallTimeout), "SessionOptions::timeout"));
  settings.start_timeout = seconds_from_environment(
      environment::kStartTimeout,
      check_timeout(options.start_timeout.value_or(kDefaultStartTimeout), "SessionOptions::start_timeout"));
  settings.grace = check_timeout(options.grace, "SessionOptions::grace");
  settings.wrappers =
      wrappers::Wrappers::read(from_environment(environment::kWrap), from_environment(environment::kWrapTerminal));
  if (!settings.wrappers.are_none()) settings.grace = std::max(settings.grace, kWrapperGrace);
  settings.on_worker_lost = options.on_worker_lost;
  settings.max_respawns = options.max_respawns;
  if (settings.max_respawns < 0) {
    text::throw_usage("SessionOptions::max_respawns is at least 0, got " + std::to_string(settings.max_respawns));
  }
  settings.seed = options.seed;
  settings.log_dir = text_of(environment::kLogDir, options.log_dir);
  settings.output = process::output_from_environment();
  settings.master_host = "127.0.0.1";
  settings.master_port = os::free_port();
  make_log_folder(settings);
  settings.profile = text_of(environment::kProfile, options.profile);
  settings.trace = text_of(environment::kTrace, options.trace);
  settings.metrics = metrics_target_of(options);
  settings.log_level = log_level_of(options);
  return settings;
}

}  // namespace syncrun::detail::master::settings
