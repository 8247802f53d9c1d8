#pragma once

// `syncrun --dry-run`: describes what would be started.

#include <string>

#include "launcher/syncrun/options.hpp"

namespace syncrun::detail {

/// Describes the command, the devices by rank and the variables. `program` is the path of the image. Throws Error
/// (usage) if variables in the present environment name devices that cannot be used.
std::string describe_start(const CommandOptions& options, const std::string& program);

}  // namespace syncrun::detail
