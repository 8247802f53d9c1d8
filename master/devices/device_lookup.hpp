#pragma once

// Finds the device of a session that a program asks for.

#include <string>
#include <string_view>
#include <vector>

#include "master/devices/chosen_devices.hpp"
#include "syncrun/device.hpp"

namespace syncrun::detail::master::devices {

/// Finds a device by a name that the user has given to it, or by the name of the hardware. `devices` has the names of the
/// hardware by rank: "cpu0", or "n1:cpu0" if there are several nodes. Throws Error (usage) with the known names if there is
/// no such device.
Device find_device(const std::vector<std::string>& devices, const std::vector<DeviceName>& names,
                   std::string_view name);

/// Throws Error (usage) unless `rank` is a rank of the session.
Device device_of_rank(const std::vector<std::string>& devices, const std::vector<DeviceName>& names, int rank);

}  // namespace syncrun::detail::master::devices
