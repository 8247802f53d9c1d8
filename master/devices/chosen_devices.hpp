#pragma once

// The devices that a user has chosen, by rank, and the names that the user has given them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/detail/call.hpp"

namespace syncrun::detail::master::devices {

struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

/// "cpu3", "cuda0".
std::string to_string(const DeviceId& device);

/// The opposite of to_string. Empty if the text names no device.
std::optional<DeviceId> parse_device(std::string_view text) noexcept;

/// Returns the number if the whole text is a number of at least 0.
std::optional<int> parse_index(std::string_view text) noexcept;

/// The text between single quotes, for messages.
std::string quoted(std::string_view text);

/// A name that the user has given to a device. A device may have several names.
struct DeviceName {
  std::string name;
  int rank = 0;  // of the device
  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

struct ChosenDevices {
  std::vector<DeviceId> by_rank;
  std::vector<DeviceName> names;  // in the user's order
  friend bool operator==(const ChosenDevices&, const ChosenDevices&) = default;
};

/// True if a program written for `wanted` runs on the same devices with `given`, and finds all its names there.
bool includes(const ChosenDevices& given, const ChosenDevices& wanted);

/// The names of a rank's device in one text: "dev0, main". Empty if the user has given it none.
std::string names_of_rank(const std::vector<DeviceName>& names, int rank);

}  // namespace syncrun::detail::master::devices
