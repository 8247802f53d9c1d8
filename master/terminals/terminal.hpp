#pragma once

// Runs a command in a terminal of its own: a window of tmux, or an xterm.
//
//   master --> syncrun (open_terminal) --> tmux or xterm
//                   |                          |
//                   +-------- socket ---- syncrun (run_in_terminal) --> the command, such as gdb
//
// The first `syncrun` sends the command, its environment and its open descriptors through the socket. The second one
// starts the command, and sends back how it has ended. If one of the two dies, the other one sees the end of the socket. A
// terminal that tmux opens has another parent, so the command could not inherit any of these.

#include <span>
#include <string>

namespace syncrun::detail::master::terminals {

// The names of the subcommands. They are not for users.
inline constexpr const char* kOpenTerminal = "in-terminal";
inline constexpr const char* kRunInTerminal = "in-opened-terminal";

/// The command for environment::kWrapTerminal. `kind` is "tmux" or "xterm". Throws Error (usage) if it cannot be used.
std::string command_for(const std::string& kind);

/// The words are the kind of the terminal and the command. Returns the exit code of the command, or ends by the signal that
/// ended the command.
int open_terminal(std::span<char* const> words);
/// The word is the address of the socket.
int run_in_terminal(std::span<char* const> words);

}  // namespace syncrun::detail::master::terminals
