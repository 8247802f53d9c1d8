#include "master/devices/chosen_devices.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace syncrun::detail::master::devices {

std::string to_string(const DeviceId& device) {
  return (device.kind == DeviceKind::cpu ? "cpu" : "cuda") + std::to_string(device.index);
}

std::optional<int> parse_index(std::string_view text) noexcept {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<DeviceId> parse_device(std::string_view text) noexcept {
  for (const auto& [prefix, kind] :
       {std::pair{std::string_view("cpu"), DeviceKind::cpu}, std::pair{std::string_view("cuda"), DeviceKind::cuda}}) {
    if (!text.starts_with(prefix)) continue;
    if (const auto index = parse_index(text.substr(prefix.size()))) return DeviceId{kind, *index};
  }
  return std::nullopt;
}

std::string quoted(std::string_view text) {
  std::string result(text.size() + 2, '\'');
  text.copy(&result[1], text.size());
  return result;
}

bool includes(const ChosenDevices& given, const ChosenDevices& wanted) {
  const auto is_given = [&](const DeviceName& name) {
    return std::find(given.names.begin(), given.names.end(), name) != given.names.end();
  };
  return given.by_rank == wanted.by_rank && std::all_of(wanted.names.begin(), wanted.names.end(), is_given);
}

std::string names_of_rank(const std::vector<DeviceName>& names, int rank) {
  std::string text;
  for (const auto& name : names) {
    if (name.rank == rank) text.append(text.empty() ? "" : ", ").append(name.name);
  }
  return text;
}

}  // namespace syncrun::detail::master::devices
