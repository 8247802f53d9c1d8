#pragma once

// Reads a profile that `--profile FILE.json` has written.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/profile.hpp"

namespace syncrun::detail::master::report {

struct ReportedFunction {
  std::string name;
  std::vector<CallProfile> lines;  // of the master and of the ranks that took part, in this order
};

struct ReportedProfile {
  std::string version;                 // of Syncrun
  std::chrono::nanoseconds elapsed{};  // from the begin of the first call to the end of the last one
  std::chrono::nanoseconds busy{};     // at least one call was in flight
  std::chrono::nanoseconds calls{};    // the sum over all calls
  std::int64_t lost_events = 0;
  std::vector<std::string> devices;  // by rank
  std::vector<ReportedFunction> functions;
};

/// Throws Error (usage) that says what is wrong with the text. `name` is that of the file.
ReportedProfile parse_profile(std::string_view json, const std::string& name);

}  // namespace syncrun::detail::master::report
