#pragma once

// When this process crashes, it tells the master before it dies, so that the master can read its stack.

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::worker::process {

/// Sets the socket to the master. The thread that receives from it calls this, and then note_crash_answer() for each byte.
/// `link` must live until the process ends.
void set_crash_link(const os::KeptDescriptor& link) noexcept;
void note_crash_answer() noexcept;

/// Reports crashes from now on. Gives the calling thread a stack for signal handlers if it has none, so that an overflow
/// of its own stack is reported too. Handlers that the program has set stay. Does nothing
/// under Valgrind. Throws Error (system).
void report_crashes();

}  // namespace syncrun::detail::worker::process
