#pragma once

// What the environment says about who started this process and for what, and whether that is true. The variables are easy
// to set: by accident (exported in a shell, copied into a job script), or by somebody who wants a privileged program to do
// something. What they say is believed only where the kernel bears it out.
//
// A master that starts a process gives it one end of a socket pair. The kernel has noted on it which process made it and
// with which rights (SO_PEERCRED), and nobody else can make one that says the same.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/file_descriptor.hpp"
#include "common/segment.hpp"

namespace syncrun::detail {

/// The master that started this process, and the tie to it.
struct Parentage {
  pid_t master = -1;
  FileDescriptor socket;
};

/// Whether the environment says that this process is a worker, or a helper (a producer, a task).
bool is_called_worker() noexcept;
bool is_called_helper() noexcept;

/// Takes what every child of a master gets out of the environment, once it has been verified. Throws Error (usage), which
/// names the variable, its value and what was expected, where it is missing or not true; nothing has been done by then.
Parentage take_parentage();

/// Take a variable that the master has set out of the environment. Throw Error (usage) in the same way.
std::string take_variable(const char* name);
std::int64_t take_number(const char* name, std::int64_t most);
/// The number of an inherited descriptor, which is close-on-exec from here on; `what` it has to be.
FileDescriptor take_descriptor(const char* name, const std::string& what);
/// The shared memory of the master's session, mapped.
Segment take_segment();

}  // namespace syncrun::detail
