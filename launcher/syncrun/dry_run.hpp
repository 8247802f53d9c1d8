#pragma once

// `syncrun --dry-run`: describes what would be started.

#include <string>

#include "launcher/devices/chosen_devices.hpp"
#include "launcher/syncrun/options.hpp"

namespace syncrun::detail {

/// Describes the devices by rank, one in a line, with their names: "  rank 0: cuda0 (dev0)". In a session with devices
/// of both kinds, also the number of threads that numerical libraries start on each rank. Otherwise this number is the
/// same on all ranks.
std::string describe_ranks(const ChosenDevices& devices);

/// Describes the command, the devices by rank and the variables. `program` is the path of the image. Throws Error
/// (usage) if variables in the present environment name devices that cannot be used.
std::string describe_start(const CommandOptions& options, const std::string& program);

}  // namespace syncrun::detail
