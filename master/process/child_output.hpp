#pragma once

// The standard output or standard error of a child, which the master passes on as lines. What stands before each line,
// where the lines go, and which file gets a copy of them are objects that are chosen once. The lines of one read are
// passed on together: an output of much text costs a few system calls for 64 KiB, and none for a line.

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/mutex.hpp"
#include "master/process/child_log.hpp"
#include "master/process/line_format.hpp"
#include "master/process/output_target.hpp"

namespace syncrun::detail::master::process {

/// Used by one thread. Any thread may call is_intact() and tail().
class ChildOutput {
 public:
  /// `format` says what stands before every line. `from` is the read end of the child's pipe, which does not block.
  /// Lines go to `to`. `log` gets a copy as the child wrote them. The object refers to `to` and `log` as long as it
  /// lives.
  ChildOutput(std::unique_ptr<LineFormat> format, os::FileDescriptor from, OutputTarget& to, ChildLog& log);

  /// Needs no lock: only the thread that calls this changes the descriptor.
  int fd() const noexcept SYNCRUN_NO_THREAD_SAFETY_ANALYSIS { return from_.get(); }
  /// False if the program has closed the pipe. A pipe that finish() has closed counts as intact. From any thread.
  bool is_intact() const;
  const OutputTarget& target() const noexcept { return to_; }
  /// Reads some of the available bytes, without blocking. Returns false at end of file, or if the pipe fails. If the
  /// program has closed the pipe meanwhile, returns true: the pipe has not ended, and is_intact() is false.
  bool pump();
  /// Passes on a last line that has no newline, and closes the pipe.
  void finish();
  /// The last lines, oldest first. From any thread.
  std::vector<std::string> tail() const;

 private:
  void take(std::string_view text);
  void end_partial();
  void pass_on(std::string_view lines);
  void remember(std::string_view lines);
  void show_progress();

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 16U;
  mutable os::Mutex mutex_;
  std::unique_ptr<LineFormat> format_;
  os::KeptDescriptor from_ SYNCRUN_GUARDED_BY(mutex_);
  OutputTarget& to_;
  ChildLog& log_;
  std::string partial_;
  bool has_news_ = false;  // partial_ has grown since it was last shown
  std::deque<std::string> tail_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::detail::master::process
