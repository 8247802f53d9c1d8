#pragma once

// The branch of a program that runs in a helper process: a producer of a queue, or a task.

#include <optional>
#include <string>

#include "common/channel.hpp"
#include "common/helper_order.hpp"
#include "syncrun/detail/helper.hpp"

namespace syncrun::detail {

/// Nothing, if this process is no helper. Else runs its function and returns the exit code.
std::optional<int> serve_if_helper();

/// Calls the order's function.
void run_order(const ReceivedOrder& received, HelperCall& call);

/// The two kinds of helpers, from when the order is read. What the function throws goes to the master.
int serve_producer(const ReceivedOrder& received, int index, FileDescriptor socket);
int serve_task(const ReceivedOrder& received, FileDescriptor socket);

}  // namespace syncrun::detail
