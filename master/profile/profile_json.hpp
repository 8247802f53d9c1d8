#pragma once

// A profile as JSON, for `syncrun report` and other programs.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "master/profile/coverage.hpp"
#include "syncrun/profile.hpp"

namespace syncrun::detail::master::profile {

/// A number that changes if a reader of the old form would misunderstand the new one.
inline constexpr int kProfileForm = 1;

/// `devices` is by rank. The lines of a function are next to each other in `calls`.
std::string profile_json(std::span<const CallProfile> calls, const std::vector<std::string>& devices,
                         const Coverage& coverage, std::uint64_t lost_events);

}  // namespace syncrun::detail::master::profile
