#include "launcher/settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/log.hpp"

namespace syncrun::detail {

namespace {

constexpr Milliseconds kDefaultCallTimeout = std::chrono::minutes(10);
constexpr Milliseconds kDefaultStartTimeout = std::chrono::seconds(60);

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

Milliseconds seconds_from_environment(const char* name, Milliseconds otherwise) {
  const std::string text = from_environment(name);
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds >= 0) || seconds > 1e9) {
    throw_usage(std::string(name) + " wants a number of seconds from 0, got '" + text + "'");
  }
  return Milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

LogLevel log_level_of(const SessionOptions& options) {
  if (options.log_level) return *options.log_level;
  const std::string text = from_environment(environment::kLogLevel);
  if (text.empty()) return LogLevel::warning;
  if (const auto level = parse_log_level(text)) return *level;
  throw_usage(std::string(environment::kLogLevel) + " wants trace, debug, info, warning, error or off, got '" + text +
              "'");
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

Settings resolve_settings(const SessionOptions& options) {
  Settings settings;
  const bool is_chosen = !options.devices.empty() || !options.processes.empty();
  settings.devices =
      is_chosen ? resolve_devices(options.devices, options.processes)
                : resolve_devices(from_environment(environment::kDevices), from_environment(environment::kProcesses));
  settings.call_timeout = resolve_timeout(options.timeout, "SessionOptions::timeout");
  settings.start_timeout = resolve_start_timeout(options.start_timeout, "SessionOptions::start_timeout");
  settings.grace = check_timeout(options.grace, "SessionOptions::grace");
  settings.seed = options.seed;
  settings.log_dir = options.log_dir.empty() ? from_environment(environment::kLogDir) : options.log_dir;
  if (!settings.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(settings.log_dir, error);
    if (error) throw_errno("cannot make the log folder " + settings.log_dir, error.value());
  }
  settings.log_level = log_level_of(options);
  return settings;
}

}  // namespace syncrun::detail
