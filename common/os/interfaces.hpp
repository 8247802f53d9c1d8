#pragma once

// The network of this machine.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::os {

/// The network interfaces that are up, with their IPv4 addresses: "eth0 10.0.0.1, ib0 10.1.0.1".
SYNCRUN_EXPORT_FOR_CUDA std::string network_interfaces();

/// The IPv4 addresses of the interfaces that are up, without loopback, in network order. With a name, those of this
/// interface only, which may be loopback.
std::vector<std::uint32_t> ipv4_addresses(std::string_view interface = {});

/// A TCP port on which nothing listens now. 29500, which torchrun uses, if no socket can be made.
int free_port() noexcept;

}  // namespace syncrun::detail::os
