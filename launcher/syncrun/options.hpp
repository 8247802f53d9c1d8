#pragma once

// The command line of `syncrun`: makes checked values from argv.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail {

struct CommandOptions {
  enum class Action { run, dry_run, version, help };
  Action action = Action::run;
  std::vector<std::string> command;  ///< The program as written, and its arguments. Empty for version and help.

  // As written. Empty if not given.
  std::string devices;
  std::string processes;
  std::string timeout;
  std::string start_timeout;
  std::string log_dir;  ///< Absolute, because the program may change its current folder.
  std::string log_level;
  std::string profile;  ///< Absolute, or "-".
  std::string trace;    ///< Absolute.
  bool is_quiet = false;
  std::chrono::milliseconds grace{5000};
  int max_restarts = 0;
  int restart = 0;  ///< How often a script has run the program before.
  int nodes = 0;    ///< 0: not given.
  std::string node_timeout;
  std::string tree_from;
};

/// Reads options up to the first word that is not one. The rest belongs to the program. Throws Error (usage) with what
/// was expected and what was got.
CommandOptions parse_command_line(int argc, char** argv);

/// The changes that `syncrun` makes in the environment of the program.
struct EnvironmentChanges {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
};

/// Sets one variable for each option that was given. If only one of --devices and -n was given, the variable of the
/// other is unset. If any of the two was given, SYNCRUN_CONTEXTS is unset.
EnvironmentChanges environment_for(const CommandOptions& options);

std::string help_text();

}  // namespace syncrun::detail
