#pragma once

// The command line of `syncrun`: makes checked values from argv.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncrun::detail::master::command_line {

/// CommandOptions::Given::source of what is on the command line.
inline constexpr const char* kCommandLineSource = "command line";

struct CommandOptions {
  enum class Action { run, dry_run, version, help };
  Action action = Action::run;
  std::vector<std::string> command;  ///< The program as written, and its arguments. Empty for version and help.

  /// The options that the program gets: each with the name of its variable and its checked value. Paths are absolute,
  /// because the program may change its current folder.
  std::vector<std::pair<std::string, std::string>> variables;
  /// The value of the option with this variable. Empty if it was not given.
  std::string value_of(const char* variable) const;
  /// The same, or else what the variable is set to.
  std::string effective(const char* variable) const;

  /// The options that hold, with their values as written. Each comes from one place.
  struct Given {
    std::string name;    ///< Without "--".
    std::string value;   ///< Empty if the option has no value.
    std::string source;  ///< kCommandLineSource, or the place in the configuration file.
  };
  std::vector<Given> given;
  bool is_given(std::string_view name) const;

  /// The variables of --env, of --env-file and of the table [env] in the file, with the values that the program gets. The
  /// source may also be "environment", which comes before the file.
  std::vector<Given> program_variables;
  void note_variable(const std::string& name, const std::string& source);

  // For `syncrun` alone.
  std::string error_file;                          ///< Empty: none.
  std::string pid_file;                            ///< Empty: none.
  std::string folder;                              ///< Where the program runs. Empty: the present folder.
  std::optional<std::chrono::milliseconds> grace;  ///< Empty: not given.
  int max_restarts = 0;
  int restart = 0;  ///< How often a script has run the program before.
  int nodes = 0;    ///< 0: not given.

  // For a job on several nodes whose engine `syncrun` starts.
  std::string launcher;                     ///< As written. Empty: not given.
  std::vector<std::string> launcher_words;  ///< Further options of the engine.
  std::vector<std::string> hosts;           ///< Of --hosts or --hostfile. Empty: not given.
  int spares = 0;                           ///< How many hosts wait for a restart.
};

/// Reads the options and the configuration file, and does not ask for a program. `syncrun config` shows the result. Throws
/// the same errors. --env and --env-file take effect at once: they set variables of this process.
CommandOptions parse_options(int argc, char** argv);

/// Reads options up to the first word that is not one. The rest belongs to the program. Throws Error (usage) with what
/// was expected and what was got.
CommandOptions parse_command_line(int argc, char** argv);

/// The same for the part of a node in a job that another `syncrun` has started. Reads no configuration file: the other one
/// has done so, and has put what holds on this command line.
CommandOptions parse_task_command_line(int argc, char** argv);

/// Whether the options may be for other machines than this one. Then their devices are not checked when they are read.
bool may_be_for_other_machines(const CommandOptions& options);
/// Checks that this machine has the devices that the options ask for. Throws Error (usage).
void check_devices_of_this_machine(const CommandOptions& options);

/// The changes that `syncrun` makes in the environment of the program.
struct EnvironmentChanges {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
};

/// Sets one variable for each option that was given. If only one of --devices and -n was given, the variable of the
/// other is unset. If any of the two was given, SYNCRUN_CONTEXTS is unset.
EnvironmentChanges environment_for(const CommandOptions& options);

}  // namespace syncrun::detail::master::command_line
