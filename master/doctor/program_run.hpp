#pragma once

// Runs another program to its end, and keeps what it prints.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail::master::doctor {

struct ProgramEnd {
  std::string output{};   // standard output
  std::string errors{};   // standard error
  int exit_code = -1;     // -1: it was not started, or died of a signal
  bool was_late = false;  // it was killed at the limit
};

/// Runs a program, and kills it at the limit. `command` is its path and its arguments. If the program cannot be started,
/// `errors` says why. `variables` are added to the environment, or replace parts of it.
ProgramEnd run_program(const std::vector<std::string>& command, std::chrono::milliseconds limit,
                       std::vector<std::pair<std::string, std::string>> variables = {});

}  // namespace syncrun::detail::master::doctor
