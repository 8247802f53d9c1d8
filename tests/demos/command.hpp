#pragma once

// Runs a program to its end, for tests that look at what it prints and how it exits.

#include <string>
#include <vector>

struct CommandResult {
  int exit_code = -1;  // -1: killed by a signal
  std::string output;  // standard output
  std::string errors;  // standard error
};

/// `command` is the path of a program and its arguments. Throws std::system_error where it cannot be started.
CommandResult run_command(const std::vector<std::string>& command);
