#pragma once

// What a session runs with: the program's options, what `syncrun` put into the environment, and the defaults, in that
// order of precedence.

#include <string>
#include <vector>

#include "common/wait.hpp"
#include "launcher/devices.hpp"
#include "syncrun/options.hpp"

namespace syncrun::detail {

struct Settings {
  std::vector<DeviceId> devices;  // by rank
  Milliseconds call_timeout{};    // 0: none
  Milliseconds start_timeout{};   // 0: none
  Milliseconds grace{};
  std::uint64_t seed = 0;
  std::string log_dir;  // empty: none
  LogLevel log_level = LogLevel::warning;
};

/// Throws Error (usage) that names the option or variable, what was expected and what was got.
Settings resolve_settings(const SessionOptions& options);

}  // namespace syncrun::detail
