#pragma once

// Takes the stacks of other processes from outside, because a worker that is stopped or blocks its signals cannot
// report its own stack. elfutils' libdw traces the process for a moment (ptrace), and finds the frames with the unwind
// tables of its images. Syncrun loads this library only when it is needed. So programs do not link it, and it does not
// slow down their start.

#include <string>
#include <vector>

#include "common/os/wait.hpp"

namespace syncrun::detail::master::process {

struct NativeStack {
  std::vector<std::string> lines;  // "#0 function (library)", below "thread 12 (name):" from the second thread on
  std::string problem;             // the reason if there are no lines
};

/// Returns the stacks of processes, one for each pid, in order. A pid of 0 stands for a worker that has not begun. Takes no
/// longer than `limit`. A stack that is not available by then has a problem instead. For example, a process in an
/// uninterruptible sleep cannot be traced. Never throws.
std::vector<NativeStack> native_stacks(const std::vector<int>& pids, os::Milliseconds limit) noexcept;

}  // namespace syncrun::detail::master::process
