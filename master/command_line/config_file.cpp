#include "master/command_line/config_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"

#if defined(SYNCRUN_HAVE_TOML)
#include <toml++/toml.h>
#endif

namespace syncrun::detail::master::command_line {

std::string config_path() {
  const auto folder_in = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return std::string(value != nullptr && *value == '/' ? value : "");
  };
  if (const std::string folder = folder_in("XDG_CONFIG_HOME"); !folder.empty()) return folder + "/syncrun/config";
  const std::string home = folder_in("HOME");
  return home.empty() ? "" : home + "/.config/syncrun/config";
}

#if defined(SYNCRUN_HAVE_TOML)

namespace {

std::string place_of(const std::string& path, const toml::source_region& region) {
  return path + ", line " + std::to_string(region.begin.line);
}

/// A value as it would be on the command line. Empty if there is no such form. `between` stands between those of a list.
std::optional<std::string> value_text(const toml::node& node, char between) {
  if (const auto text = node.value_exact<std::string>()) return text;
  if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return number_text(*number);
  if (const auto is_on = node.value_exact<bool>()) return *is_on ? "true" : "false";
  if (!node.is_array()) return std::nullopt;
  std::string list;
  for (const toml::node& each : *node.as_array()) {
    const auto text = each.is_array() ? std::nullopt : value_text(each, between);
    if (!text) return std::nullopt;
    if (!list.empty()) list += between;
    list += *text;
  }
  return list;
}

void add_entries(std::vector<ConfigEntry>& entries, const toml::table& table, const std::string& path,
                 bool is_variable) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (!is_variable && name == "env" && node.is_table()) {
      add_entries(entries, *node.as_table(), path, true);
      continue;
    }
    const std::string place = place_of(path, node.source());
    // A command may contain commas, so SYNCRUN_WRAP has a line for each.
    const auto text = value_text(node, name == "wrap" ? '\n' : ',');
    if (!text) text::throw_usage(place + ": " + name + ": expected a text, a number, true, false or a list of them");
    entries.push_back({name, *text, node.is_boolean(), is_variable, place});
  }
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) return {};
  if (!S_ISREG(status.st_mode)) text::throw_usage(path + ": expected a configuration file, found no regular file");
  if (::access(path.c_str(), R_OK) != 0) text::throw_usage(path + ": this configuration file cannot be read");
  try {
    std::vector<ConfigEntry> entries;
    add_entries(entries, toml::parse_file(path), path, false);
    return entries;
  } catch (const toml::parse_error& error) {
    text::throw_usage(place_of(path, error.source()) + ": expected TOML, such as timeout = 30 or log-dir = \"logs\": " +
                      std::string(error.description()));
  }
}

#else

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return {};
  text::throw_usage(path +
                    ": this syncrun was built without toml++, so it cannot read configuration files. Install "
                    "libtomlplusplus-dev and build it again, or rename the file");
}

#endif

}  // namespace syncrun::detail::master::command_line
