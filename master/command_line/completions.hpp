#pragma once

// Completions of the command line for bash, zsh and fish, made from the tables of options and subcommands.

#include <string>
#include <string_view>

namespace syncrun::detail::master::command_line {

/// The script for a shell: bash, zsh or fish. Throws Error (usage) for another.
std::string completions(std::string_view shell);

}  // namespace syncrun::detail::master::command_line
