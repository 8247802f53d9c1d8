#pragma once

// Reads from the environment who started this process and for what purpose, and checks whether that is true. The
// variables are easy to set, by accident (exported in a shell, copied into a job script) or by someone who wants a
// privileged program to do something. So this process believes them only if the kernel confirms what they say.
//
// A master gives each process that it starts one end of a socket pair. The kernel has recorded which process made the
// pair and with which rights (SO_PEERCRED). No other process can make a socket pair with the same record.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/os/file_descriptor.hpp"
#include "common/os/segment.hpp"

namespace syncrun::detail::worker::process {

/// The master that started this process, and the socket that connects the two.
struct Parentage {
  pid_t master = -1;
  pid_t parent = -1;  ///< The master, or the process of a wrapper between the two (master/wrappers/wrappers.hpp).
  bool is_wrapped = false;
  os::FileDescriptor socket;
};

/// Whether the environment says that this process is a worker, or a helper (a producer, a task).
bool is_called_worker() noexcept;
bool is_called_helper() noexcept;

/// Verifies what every child of a master gets through the environment, and removes it from there. Throws Error (usage)
/// if a variable is missing or not true. The error names the variable, its value and what was expected. Nothing else
/// has been done by then.
Parentage take_parentage();

/// These functions remove a variable that the master has set from the environment, and return its value. They throw the
/// same Error (usage).
std::string take_variable(const char* name);
std::int64_t take_number(const char* name, std::int64_t most);
/// Takes the number of an inherited descriptor, and makes the descriptor close-on-exec. `what` describes the expected
/// file in errors.
os::FileDescriptor take_descriptor(const char* name, const std::string& what);
/// Takes the descriptor of the shared memory of the master's session, and maps it.
os::Segment take_segment();

}  // namespace syncrun::detail::worker::process
