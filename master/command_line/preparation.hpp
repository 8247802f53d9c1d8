#pragma once

// Checks of files and folders before anything is started. So a mistake shows at once and has its own exit code.

#include <stdexcept>
#include <string>

namespace syncrun::detail::master::command_line {

/// Ends `syncrun` with this message and exit code.
struct CommandFailure : std::runtime_error {
  CommandFailure(int code, const std::string& message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

// Exit codes. They are those of POSIX for a shell where it has one, and otherwise those of env(1) and similar programs.
inline constexpr int kUsageExit = 2;
inline constexpr int kNotSyncrunExit = 125;
inline constexpr int kNotExecutableExit = 126;
inline constexpr int kNotFoundExit = 127;
inline constexpr int kSignalExit = 128;  // plus the signal's number

/// Returns the path of the image to execute for a name. Searches PATH as a shell does. Throws CommandFailure: 127 if
/// there is none, 126 if it cannot be executed.
std::string find_program(const std::string& name);

/// The name of Syncrun's library that the file of a program contains, such as "libsyncrun.so.0.1". Empty if it contains
/// none, or is a script.
std::string library_named_in(const std::string& path);

/// The folder of the library that was installed with this `syncrun`. Empty if there is no library of this name.
std::string folder_of_library(const std::string& name);

/// True if the file of a program gives it more rights than the user who starts it has (set-user-ID, set-group-ID, file
/// capabilities).
bool raises_privileges(const std::string& path) noexcept;

/// Throws Error (usage) unless files could be written in `path`, or the folder could be created.
void check_log_dir(const std::string& path);

/// Creates the folder if it does not exist. Throws Error (usage).
void make_log_dir(const std::string& path);

}  // namespace syncrun::detail::master::command_line
