#pragma once

// --env and --env-file: variables that `syncrun` sets in its own environment, and so in that of the program.

#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail::master::command_line {

/// Sets a variable: "NAME=VALUE". "NAME" alone requires that it is set already, as mpirun -x does: a program on this
/// machine inherits all variables. `option` is for messages. Throws Error (usage) if the text has another form, or the
/// variable is one that Syncrun sets itself. Returns the name.
std::string set_environment(const std::string& option, const std::string& text);

/// Sets the variables in the lines of a file, as set_environment() does. Empty lines, and lines that begin with '#', say
/// nothing. A value is the rest of the line as it is, also with quotes. Throws Error (usage) with the number of the line.
/// Returns the names, each with its place in the file.
std::vector<std::pair<std::string, std::string>> set_environment_from_file(const std::string& option,
                                                                           const std::string& path);

}  // namespace syncrun::detail::master::command_line
