#pragma once

// How much memory may still be used: what is available on the machine, and what the control group allows. fallocate
// reports no error when a process goes over the limit of its control group. Instead, the kernel kills the process. So
// Syncrun checks the limit before it allocates.

#include <cstdint>
#include <string_view>

namespace syncrun::detail::os {

/// The bytes that can be allocated now without an out-of-memory kill, according to /proc/meminfo and the control
/// groups. INT64_MAX if neither can be read.
std::int64_t available_memory_bytes();

/// The bytes that all processes of the machine, or of the smallest control group of this one, may use together. INT64_MAX
/// if that cannot be read.
std::int64_t granted_memory_bytes();

/// False with SYNCRUN_MEMORY_CHECK=off. True with "on", and if the variable is unset or empty. Throws Error (usage) for
/// any other value.
bool is_memory_checked();

/// Throws Error (system, ENOMEM) if fewer than `bytes` are available. The message contains both numbers. `what` names
/// the thing that requires the memory, and `kind` the kind of memory. Does nothing with SYNCRUN_MEMORY_CHECK=off.
void check_memory_available(std::uint64_t bytes, std::string_view what, std::string_view kind = "shared memory");
/// The same if `spare` bytes of shared memory can be freed for it, which the message then says.
void check_memory_available(std::uint64_t bytes, std::uint64_t spare, std::string_view what);

}  // namespace syncrun::detail::os
