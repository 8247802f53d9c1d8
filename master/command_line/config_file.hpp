#pragma once

// The configuration file of a user, in TOML. Its keys are the names of options: `timeout = 30`. The table [env] sets
// variables for the program. The command line and the environment come before it.

#include <string>
#include <vector>

namespace syncrun::detail::master::command_line {

struct ConfigEntry {
  std::string name;
  std::string value;  ///< As on the command line. Of a switch, "true" or "false".
  bool is_switch = false;
  bool is_variable = false;  ///< It is in the table [env].
  std::string place;         ///< For messages: "the path of the file, and its line".
};

/// $XDG_CONFIG_HOME/syncrun/config, or ~/.config/syncrun/config. Empty if neither variable names a folder.
std::string config_path();

/// The entries in the order of the file. No entries if the path is empty or there is no file. Throws Error (usage) if
/// the file is not as expected, or if this `syncrun` was built without a library that reads TOML.
std::vector<ConfigEntry> read_config_file(const std::string& path);

}  // namespace syncrun::detail::master::command_line
