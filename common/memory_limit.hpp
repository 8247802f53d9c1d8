#pragma once

// How much memory may still be used: what the machine has, and what the control group allows. Memory that a control
// group will not grant is not refused by fallocate: the process is killed. So it is asked first.

#include <cstdint>
#include <string_view>

namespace syncrun::detail {

/// Bytes that can be allocated now without an out-of-memory kill, as far as the kernel says; INT64_MAX where it does not.
std::int64_t available_memory_bytes();

/// False with SYNCRUN_MEMORY_CHECK=off. Throws Error (usage) for a value that is neither on nor off.
bool is_memory_checked();

/// Throws Error (system, ENOMEM) if `bytes` more are not to be had, with both numbers. SYNCRUN_MEMORY_CHECK=off turns it
/// off. `what` wants it, as memory of that kind.
void check_memory_available(std::uint64_t bytes, std::string_view what, std::string_view kind = "shared memory");

}  // namespace syncrun::detail
