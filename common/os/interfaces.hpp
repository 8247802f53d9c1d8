#pragma once

// The network of this machine, for messages.

#include <string>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail {

/// The network interfaces that are up, with their IPv4 addresses: "eth0 10.0.0.1, ib0 10.1.0.1".
SYNCRUN_EXPORT_FOR_CUDA std::string network_interfaces();

}  // namespace syncrun::detail
