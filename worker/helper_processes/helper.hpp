#pragma once

// The branch of a program that runs in a helper process: a producer of a queue, or a task.

#include <optional>
#include <string>

#include "common/protocol/channel.hpp"
#include "common/protocol/helper_spec.hpp"
#include "syncrun/detail/helper.hpp"

namespace syncrun::detail::worker::helper_processes {

/// If this process is a helper, runs its function and returns the exit code. Otherwise returns nothing.
std::optional<int> serve_if_helper();

/// Resolves the function of the spec in the program's image, and calls it.
void run_function(const protocol::ReceivedSpec& received, HelperCall& call);

/// Run a producer or a task after the spec has been read. They send exceptions of the function to the master.
int serve_producer(const protocol::ReceivedSpec& received, int index, os::FileDescriptor socket);
int serve_task(const protocol::ReceivedSpec& received, os::FileDescriptor socket);

}  // namespace syncrun::detail::worker::helper_processes
