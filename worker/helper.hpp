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

/// What an exception that leaves a helper's function says.
struct HelperFailure {
  ErrorKind kind;
  int native_code;
  std::string text;
};
/// Of the exception that is being handled.
HelperFailure current_failure() noexcept;

/// Calls the order's function.
void run_order(const ReceivedOrder& received, HelperCall& call);

/// A task, from when its order is read. Never throws what the function throws.
int serve_task(const ReceivedOrder& received, FileDescriptor socket);

}  // namespace syncrun::detail
