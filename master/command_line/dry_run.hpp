#pragma once

// `syncrun --dry-run`: describes what would be started.

#include <string>

#include "master/command_line/options.hpp"
#include "master/devices/chosen_devices.hpp"

namespace syncrun::detail::master::command_line {

/// Describes the devices by rank, one in a line, with their names: "  rank 0: cuda0 (dev0)". In a session with devices
/// of both kinds, also the number of threads that numerical libraries start on each rank. Otherwise this number is the
/// same on all ranks.
std::string describe_ranks(const devices::ChosenDevices& devices);

/// A word in the form that a shell requires.
std::string shell_word(const std::string& word);

/// Describes the command, the devices by rank and the variables. `program` is the path of the image. Throws Error
/// (usage) if variables in the present environment name devices that cannot be used.
std::string describe_start(const CommandOptions& options, const std::string& program);

}  // namespace syncrun::detail::master::command_line
