#pragma once

// Lists of devices of several machines: "n1:cpu0,n1:cpu1,left=n2:cuda0".

#include <string>
#include <string_view>
#include <vector>

namespace syncrun::detail::master::devices {

/// The name of this machine, without its domain.
std::string own_host_name();

/// The entries of a list that concern this host, without the host: "cuda0". Entries without a host concern every host. The
/// list is as for `--devices`. `option` contains it, for messages. Throws Error (usage) if there is no such entry.
std::string part_of_host(std::string_view option, std::string_view list, std::string_view host);

/// The hosts that a list names, each once.
std::vector<std::string> hosts_in(std::string_view list);

}  // namespace syncrun::detail::master::devices
