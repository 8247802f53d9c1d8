#pragma once

// The options of `syncrun`, each in one place: its name, its value, its check and its help. A new option is a row here. One
// that is for `syncrun` alone is also a member of CommandOptions.

#include <span>
#include <string>
#include <string_view>

#include "master/command_line/options.hpp"

namespace syncrun::detail::master::command_line {

/// Checks the value of an option. `name` is for messages: "--timeout". Returns the value for the option's variable. What
/// concerns `syncrun` itself goes into the options.
using Take = std::string (*)(CommandOptions& options, const std::string& name, const std::string& value);

/// An option of `syncrun`.
struct OptionRow {
  const char* name;      // without "--"
  char letter;           // 0: none
  const char* value;     // as --help shows it; null: the option has no value
  const char* variable;  // the program gets the value in it; null: the option is for `syncrun` alone
  Take take;
  std::string_view help;             // may have several lines
  const char* otherwise = nullptr;   // the value that holds if the option is not given; null: none
  bool is_for_command_line = false;  // not in the configuration file
};

/// In the order of --help.
std::span<const OptionRow> option_table() noexcept;

}  // namespace syncrun::detail::master::command_line
