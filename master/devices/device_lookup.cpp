#include "master/devices/device_lookup.hpp"

#include <algorithm>
#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::devices {

namespace {

/// "dev0 (cuda0), dev1 (cuda0), cuda1"
std::string known_devices(const std::vector<std::string>& devices, const std::vector<DeviceName>& names) {
  std::string text;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const std::string& id = devices[rank];
    bool has_name = false;
    for (const auto& name : names) {
      if (name.rank != static_cast<int>(rank)) continue;
      has_name = true;
      text.append(text.empty() ? "" : ", ").append(name.name + " (" + id + ")");
    }
    if (!has_name) text.append(text.empty() ? "" : ", ").append(id);
  }
  return text;
}

}  // namespace

Device find_device(const std::vector<std::string>& devices, const std::vector<DeviceName>& names,
                   std::string_view name) {
  const auto named = std::ranges::find(names, name, &DeviceName::name);
  if (named != names.end()) {
    return {named->rank, named->name, devices[static_cast<std::size_t>(named->rank)], named->name};
  }
  const auto id = parse_device(name);
  const auto found = std::ranges::find(devices, id ? to_string(*id) : std::string(name));
  if (found != devices.end()) {
    const Device device = device_of_rank(devices, names, static_cast<int>(found - devices.begin()));
    return {device.rank(), device.name(), device.id(), device.id()};
  }
  text::throw_usage("this session has no device " + quoted(name) + "; expected one of " +
                    known_devices(devices, names) +
                    "; to name devices, use --devices NAME=DEVICE,... or SessionOptions::devices");
}

Device device_of_rank(const std::vector<std::string>& devices, const std::vector<DeviceName>& names, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= devices.size()) {
    text::throw_usage("device requires a rank from 0 to " + std::to_string(devices.size() - 1) + ", got " +
                      std::to_string(rank) + "; Session::world_size returns the number of ranks");
  }
  const std::string& id = devices[static_cast<std::size_t>(rank)];
  const auto named = std::ranges::find(names, rank, &DeviceName::rank);
  return {rank, named == names.end() ? id : named->name, id, std::to_string(rank)};
}

}  // namespace syncrun::detail::master::devices
