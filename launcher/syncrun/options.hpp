#pragma once

// The command line of `syncrun`: from argv to values that are known to be good.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail {

struct CommandOptions {
  enum class Action { run, dry_run, version, help };
  Action action = Action::run;
  std::vector<std::string> command;  ///< The program as written, and its arguments. Empty for version and help.

  // As written; empty: not given.
  std::string devices;
  std::string processes;
  std::string timeout;
  std::string start_timeout;
  std::string log_dir;  ///< Made absolute: the program may change its folder.
  std::string log_level;
  std::string profile;  ///< Absolute, or "-".
  std::string trace;    ///< Absolute.
  bool is_quiet = false;
  std::chrono::milliseconds grace{5000};
  int max_restarts = 0;
};

/// Reads options up to the first word that is not one; the rest belongs to the program. Throws Error (usage)
/// with what was expected and what was got.
CommandOptions parse_command_line(int argc, char** argv);

/// What `syncrun` changes in the environment of the program.
struct EnvironmentChanges {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
};

/// One variable for each option given. Where one of --devices and -n is given, a left-over variable of the
/// other goes.
EnvironmentChanges environment_for(const CommandOptions& options);

std::string help_text();

}  // namespace syncrun::detail
