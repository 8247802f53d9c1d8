#pragma once

// The branch of a program that runs in a helper process: a producer of a queue, or a task.

#include <optional>
#include <string>

#include "common/protocol/channel.hpp"
#include "common/protocol/helper_spec.hpp"
#include "syncrun/detail/helper.hpp"

namespace syncrun::detail {

/// If this process is a helper, runs its function and returns the exit code. Otherwise returns nothing.
std::optional<int> serve_if_helper();

/// Resolves the function of the spec in the program's image, and calls it.
void run_function(const ReceivedSpec& received, HelperCall& call);

/// Run a producer or a task after the spec has been read. They send exceptions of the function to the master.
int serve_producer(const ReceivedSpec& received, int index, FileDescriptor socket);
int serve_task(const ReceivedSpec& received, FileDescriptor socket);

}  // namespace syncrun::detail
