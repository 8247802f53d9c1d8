#pragma once

// What a session runs with: what `syncrun` put into the environment (or the user, without it), the program's options, and
// the defaults, in that order of precedence. Whoever starts a program has the last word.

#include <optional>
#include <string>
#include <vector>

#include <syncrun/options.hpp>  // in brackets: launcher/syncrun/ has an options.hpp, too
#include "common/wait.hpp"
#include "launcher/devices.hpp"

namespace syncrun::detail {

struct Settings {
  std::vector<DeviceId> devices;  // by rank
  Milliseconds call_timeout{};    // 0: none
  Milliseconds start_timeout{};   // 0: none
  Milliseconds grace{};
  OnWorkerLost on_worker_lost = OnWorkerLost::end;
  int max_respawns = 0;
  std::uint64_t seed = 0;
  std::string log_dir;  // empty: none
  std::string profile;  // empty: none; "-": standard error
  std::string trace;    // empty: none
  LogLevel log_level = LogLevel::warning;
  std::string overruled;  // devices that the program wanted and does not get, in words; empty: none
};

/// Throws Error (usage) that names the option or variable, what was expected and what was got.
Settings resolve_settings(const SessionOptions& options);

/// A time that is at least 0, cut to what can be counted. Throws Error (usage) that names `option`.
Milliseconds check_timeout(Milliseconds timeout, const std::string& option);
/// The deadline of a wait, and that of a start: the program's option, else what the environment says, else the default.
Milliseconds resolve_timeout(const std::optional<Milliseconds>& chosen, const std::string& option);
Milliseconds resolve_start_timeout(const std::optional<Milliseconds>& chosen, const std::string& option);

}  // namespace syncrun::detail
