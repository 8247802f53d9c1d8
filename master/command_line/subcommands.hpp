#pragma once

// What `syncrun` does in place of running a program: `syncrun help`. Each is a row of one table.

#include <span>
#include <string>
#include <string_view>

namespace syncrun::detail::master::command_line {

struct Subcommand {
  std::string_view name;
  std::string_view arguments;  ///< As --help shows them. May be empty.
  std::string_view help;       ///< One line. Empty: --help does not show the subcommand.
  /// Gets the words after the name, and returns the exit code. Throws Error (usage) with what it expected.
  int (*run)(std::span<char* const> words);
};

/// In the order of --help.
std::span<const Subcommand> subcommands() noexcept;

/// The subcommand whose name is the first word after `syncrun`. Null if that word is no subcommand. A program of this name is run by
/// `syncrun -- NAME` or by its path.
const Subcommand* find_subcommand(int argc, char** argv) noexcept;

/// Writes to standard output. Returns 0, or 1 if that failed.
int say(const std::string& text);

}  // namespace syncrun::detail::master::command_line
