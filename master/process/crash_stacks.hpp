#pragma once

// Takes the stacks of children that have crashed and wait to die. A thread of its own does this, so that the thread of the
// nursery can go on to watch the other children. It runs only as long as stacks are wanted. It takes one after the other,
// because the error names the child that dies first.

#include <memory>
#include <thread>

#include "common/os/file_descriptor.hpp"
#include "common/protocol/crash_report.hpp"
#include "master/process/native_stack.hpp"

namespace syncrun::detail::master::process {

class CrashStacks {
 public:
  CrashStacks();
  /// Waits for the thread for a limited time.
  ~CrashStacks();
  CrashStacks(const CrashStacks&) = delete;
  CrashStacks& operator=(const CrashStacks&) = delete;

  /// Begins to take the stack of a child, and then answers to the child over `link`. `pid` is the number by which the
  /// caller knows the child. If the child has a wrapper, the report has another one. Does not block. A child has one crash.
  void take(int pid, const protocol::CrashReport& crash, const os::KeptDescriptor& link) noexcept;
  /// The stack of the child if it has crashed. If there is none, `problem` says why. Otherwise, both are empty.
  NativeStack of(int pid) const;
  void forget(int pid);

 private:
  struct Work;
  void start(int pid, const protocol::CrashReport& crash, const os::KeptDescriptor& link);

  std::shared_ptr<Work> work_;  // shared with the thread, which may have to be left behind
  std::thread thread_;
};

}  // namespace syncrun::detail::master::process
