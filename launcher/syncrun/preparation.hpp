#pragma once

// What is looked up on disk before anything is started, so that a slip shows at once and with its own exit
// code.

#include <stdexcept>
#include <string>

namespace syncrun::detail {

/// `syncrun` ends with this message and exit code.
struct CommandFailure : std::runtime_error {
  CommandFailure(int code, const std::string& message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

// Exit codes: POSIX's for a shell where it has one, else those of env(1) and its like.
inline constexpr int kUsageExit = 2;
inline constexpr int kNotSyncrunExit = 125;
inline constexpr int kNotExecutableExit = 126;
inline constexpr int kNotFoundExit = 127;
inline constexpr int kSignalExit = 128;  // plus the signal's number

/// Path of the image to execute for a name, searched in PATH as a shell does. Throws CommandFailure: 127 if
/// there is none, 126 if it cannot be executed.
std::string find_program(const std::string& name);

/// Whether the file of a program gives it more rights than who starts it has (set-user-ID, set-group-ID, file capabilities).
bool raises_privileges(const std::string& path) noexcept;

/// Throws Error (usage) unless files could be written in `path`, or the folder be made.
void check_log_dir(const std::string& path);

/// Makes the folder where it is missing. Throws Error (usage).
void make_log_dir(const std::string& path);

}  // namespace syncrun::detail
