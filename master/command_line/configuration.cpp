#include "master/command_line/configuration.hpp"

#include <unistd.h>

#include <algorithm>

#include "common/os/environment.hpp"
#include "common/text/visible_text.hpp"
#include "master/command_line/config_file.hpp"
#include "master/command_line/option_table.hpp"

namespace syncrun::detail::master::command_line {

namespace {

constexpr std::size_t kSourceColumn = 40;

/// The value as TOML, whose texts are those of JSON.
std::string toml_value(const OptionRow& row, const std::string& value) {
  return row.value == nullptr ? value : text::json_string(value);
}

std::string line_of(const std::string& name, const std::string& value, const std::string& source) {
  std::string line = name + " = " + value;
  line.resize(std::max(kSourceColumn, line.size() + 1), ' ');
  return line + "# " + source + "\n";
}

/// The option that decides the value of a row: itself, or its opposite, such as --no-tag.
const CommandOptions::Given* deciding(const CommandOptions& options, const OptionRow& row) {
  const CommandOptions::Given* last = nullptr;
  for (const CommandOptions::Given& each : options.given) {
    if (each.name == row.name || each.name == std::string("no-") + row.name) last = &each;
  }
  return last;
}

std::string describe(const CommandOptions& options, const OptionRow& row) {
  if (const auto* const given = deciding(options, row)) {
    const std::string is_on = given->name == row.name ? "true" : "false";
    return line_of(row.name, toml_value(row, row.value == nullptr ? is_on : given->value), given->source);
  }
  const char* const value = row.variable == nullptr ? nullptr : environment::get(row.variable);
  if (value != nullptr && *value != '\0') {
    const std::string shown = row.value != nullptr                                   ? value
                              : environment::switch_in(row.variable).value_or(false) ? "true"
                                                                                     : "false";
    return line_of(row.name, toml_value(row, shown), std::string("environment: ") + row.variable);
  }
  if (row.otherwise != nullptr) return line_of(row.name, toml_value(row, row.otherwise), "default");
  return std::string("# ") + row.name + " is not set\n";
}

}  // namespace

std::string describe_configuration(const CommandOptions& options) {
  const std::string path = config_path();
  const bool exists = !path.empty() && ::access(path.c_str(), F_OK) == 0;
  std::string text = "# file: " + (path.empty() ? "none, since HOME is not set" : path) +
                     (exists || path.empty() ? "" : " (does not exist)") + "\n";
  for (const OptionRow& row : option_table()) {
    const bool is_opposite = std::string_view(row.name).starts_with("no-");
    if (!row.is_for_command_line && !is_opposite) text += describe(options, row);
  }
  if (!options.program_variables.empty()) text += "[env]\n";
  for (const CommandOptions::Given& each : options.program_variables)
    text += line_of(each.name, text::json_string(each.value), each.source);
  return text;
}

}  // namespace syncrun::detail::master::command_line
