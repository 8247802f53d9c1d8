#pragma once

// `syncrun --dry-run`: what would be started, in words.

#include <string>

#include "launcher/syncrun/options.hpp"

namespace syncrun::detail {

/// The command, the devices by rank and the variables. `program` is the image's path. Throws Error (usage) if
/// variables in the present environment name no good devices.
std::string describe_start(const CommandOptions& options, const std::string& program);

}  // namespace syncrun::detail
