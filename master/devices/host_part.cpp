#include "master/devices/host_part.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/text/errors.hpp"
#include "master/devices/chosen_devices.hpp"

namespace syncrun::detail::master::devices {

namespace {

/// An entry of a list: "left=n2:cuda0".
struct ListEntry {
  std::string_view name;  // "left=", or empty
  std::string_view host;  // empty: every host
  std::string_view device;
};

std::vector<ListEntry> entries_of(std::string_view list) {
  std::vector<ListEntry> entries;
  while (!list.empty()) {
    const std::string_view text = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), text.size() + 1));
    ListEntry entry;
    const auto equals = text.find('=');
    entry.name = equals == std::string_view::npos ? "" : text.substr(0, equals + 1);
    entry.device = text.substr(entry.name.size());
    const auto colon = entry.device.find(':');
    if (colon != std::string_view::npos) {
      entry.host = entry.device.substr(0, colon);
      entry.device.remove_prefix(colon + 1);
    }
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

std::string own_host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  const std::string whole = name.data();
  return whole.substr(0, whole.find('.'));
}

std::string part_of_host(std::string_view option, std::string_view list, std::string_view host) {
  if (list.find(':') == std::string_view::npos) return std::string(list);
  std::string part;
  for (const ListEntry& entry : entries_of(list)) {
    if (!entry.host.empty() && entry.host != host) continue;
    part.append(part.empty() ? "" : ",").append(entry.name).append(entry.device);
  }
  if (!part.empty()) return part;
  text::throw_usage(std::string(option) + ": expected a device of this machine, " + quoted(host) + ", in " +
                    quoted(list) + ". Each node of a job needs one: add it, or start fewer nodes");
}

std::vector<std::string> hosts_in(std::string_view list) {
  std::vector<std::string> hosts;
  for (const ListEntry& entry : entries_of(list)) {
    const bool is_new = std::find(hosts.begin(), hosts.end(), entry.host) == hosts.end();
    if (!entry.host.empty() && is_new) hosts.emplace_back(entry.host);
  }
  return hosts;
}

}  // namespace syncrun::detail::master::devices
