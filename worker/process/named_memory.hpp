#pragma once

// The names of addresses that a program may not use, for the report of a crash.

#include <cstdint>
#include <string_view>

namespace syncrun::detail::worker::process {

/// The name of the memory that has this address. Empty if it has none. A signal handler may call it.
std::string_view name_of_memory(std::uint64_t address) noexcept;

}  // namespace syncrun::detail::worker::process
