#pragma once

// Takes the stacks of other processes from outside, because a worker that is stopped, blocks its signals or has crashed
// cannot do that itself. elfutils' libdw finds the frames with the unwind tables of the images. It traces a running process
// for a moment (ptrace). Syncrun loads this library only when it is needed. So programs do not link it, and it does not
// slow down their start.

#include <string>
#include <vector>

#include "common/os/wait.hpp"
#include "common/protocol/crash_report.hpp"

namespace syncrun::detail::master::process {

struct NativeStack {
  std::vector<std::string> lines;  // "#0 function (library)", below "thread 12 (name):" from the second thread on
  std::string problem;             // the reason if there are no lines
};

/// Why no stack can be read on this machine, and what to do. Both empty if stacks can be read, as far as is known.
struct StackProblem {
  std::string why;
  std::string advice;
};
StackProblem why_no_stacks();

/// Returns the stacks of processes, one for each pid, in order. A pid of 0 stands for a worker that has not begun. Takes no
/// longer than `limit`. A stack that is not available by then has a problem instead. For example, a process in an
/// uninterruptible sleep cannot be traced. Never throws.
std::vector<NativeStack> native_stacks(const std::vector<int>& pids, os::Milliseconds limit) noexcept;

/// Returns the stack of a thread that has crashed, without the frames of its signal handler. Starts from the registers of
/// the report, and only reads the memory of the process. So a debugger may trace it, and nothing has to be stopped. The
/// process must wait until this returns. Looks for no further frames after `deadline`.
NativeStack crashed_stack(const protocol::CrashReport& crash, os::Clock::time_point deadline);

}  // namespace syncrun::detail::master::process
