#pragma once

// Stacks of other processes, taken from outside: a worker that is stopped or blocks its signals cannot say where it is.
// By elfutils' libdw, which traces the process for a moment (ptrace) and unwinds it by its images' tables. The library is
// loaded when it is needed: programs link nothing of it, and start as fast without.

#include <string>
#include <vector>

#include "common/wait.hpp"

namespace syncrun::detail {

struct NativeStack {
  std::vector<std::string> lines;  // "#0 function (library)", below "thread 12 (name):" from the second thread on
  std::string problem;             // why there are no lines
};

/// The stacks of child processes of this one, one for each, in order. Takes no longer than `limit`: what was not had by
/// then (a process in an uninterruptible sleep answers nobody) has a problem instead. Never throws.
std::vector<NativeStack> native_stacks(const std::vector<int>& pids, Milliseconds limit) noexcept;

}  // namespace syncrun::detail
