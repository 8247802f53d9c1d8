#pragma once

// Times as text, for lines of output and logs.

#include <chrono>
#include <string>

namespace syncrun::detail::text {

/// The time in UTC, as ISO 8601 writes it, with milliseconds: "2026-11-29T06:36:04.123Z". Always as long as this.
std::string utc_text(std::chrono::system_clock::time_point time);

}  // namespace syncrun::detail::text
