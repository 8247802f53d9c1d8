#pragma once

// The network of this machine.

#include <string>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::os {

/// The network interfaces that are up, with their IPv4 addresses: "eth0 10.0.0.1, ib0 10.1.0.1".
SYNCRUN_EXPORT_FOR_CUDA std::string network_interfaces();

/// A TCP port on which nothing listens now. 29500, which torchrun uses, if no socket can be made.
int free_port() noexcept;

}  // namespace syncrun::detail::os
