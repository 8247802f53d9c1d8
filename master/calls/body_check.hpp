#pragma once

// Checks whether the bodies of a function can run on the devices of its ranks. The master does this before it publishes
// a call.

#include <string>

#include "master/devices/rank_devices.hpp"

namespace syncrun::detail::master::calls {

/// Throws Error (usage): the function has no body for the `missing` kinds of devices.
[[noreturn]] void throw_without_body(const std::string& function, protocol::DeviceKinds missing,
                                     const devices::RankDevices& devices, const protocol::RankSet& ranks);

/// Throws Error (usage) if a rank of the call has a device of a kind for which there is no body. The message names
/// these ranks. `bodies` are the kinds for which the function has bodies.
inline void check_bodies(const std::string& function, protocol::DeviceKinds bodies, const devices::RankDevices& devices,
                         const protocol::RankSet& ranks) {
  const protocol::DeviceKinds missing = devices.kinds_of(ranks).without(bodies);
  if (!missing.is_empty()) throw_without_body(function, missing, devices, ranks);
}

/// The same for the constructors of a replicated object, which is made on all ranks.
void check_constructors(protocol::DeviceKinds constructors, const devices::RankDevices& devices);

}  // namespace syncrun::detail::master::calls
