#pragma once

// Draws a profile as one HTML page that needs no network, no script and no server.

#include <string>

#include "master/report/read_profile.hpp"

namespace syncrun::detail::master::report {

/// `title` is text, not HTML.
std::string draw_profile(const ReportedProfile& profile, const std::string& title);

}  // namespace syncrun::detail::master::report
