#pragma once

// `syncrun config`: which value each option has, and which place decides it.

#include <string>

#include "master/command_line/options.hpp"

namespace syncrun::detail::master::command_line {

/// One line for each option, as the configuration file may contain it, with its source as a comment:
/// `timeout = "30"  # environment: SYNCRUN_TIMEOUT`. Then the variables for the program, in the table [env].
std::string describe_configuration(const CommandOptions& options);

}  // namespace syncrun::detail::master::command_line
