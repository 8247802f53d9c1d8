#pragma once

// How much memory another process uses.

#include <cstdint>

namespace syncrun::detail::master::process {

/// The bytes of a process that are in memory, also those that it shares. 0 if the process is gone.
std::uint64_t resident_bytes(int pid) noexcept;

}  // namespace syncrun::detail::master::process
