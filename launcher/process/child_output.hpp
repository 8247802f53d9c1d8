#pragma once

// The standard output or standard error of a child, which the master passes on as lines with a tag that names the
// child. A log file gets the lines unchanged. The writer decides how they are shown.

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "launcher/process/nonblocking_writer.hpp"

namespace syncrun::detail {

/// The file that gets a copy of a child's lines.
struct ChildLog {
  std::string path;
  KeptDescriptor fd;  ///< Not open if there is no such file.
  int error = 0;      ///< errno of the first write that failed. Lines are missing in the file then.
};

/// Used by one thread. Any thread may call is_intact() and tail().
class ChildOutput {
 public:
  /// `tag` stands before every line. `from` is the read end of the child's pipe, which does not block. Tagged lines go
  /// to `to`. `log` gets a copy without tags. The object refers to `to` and `log` as long as it lives.
  ChildOutput(std::string tag, FileDescriptor from, NonblockingWriter& to, ChildLog& log);

  int fd() const noexcept { return from_.get(); }
  /// False if the program has closed the pipe. A pipe that finish() has closed counts as intact. From any thread.
  bool is_intact() const;
  NonblockingWriter& writer() const noexcept { return to_; }
  /// Reads some of the available bytes, without blocking. Returns false at end of file, or if the pipe fails. If the
  /// program has closed the pipe meanwhile, returns true: the pipe has not ended, and is_intact() is false.
  bool pump();
  /// Passes on a last line that has no newline, and closes the pipe.
  void finish();
  /// The last lines, oldest first. From any thread.
  std::vector<std::string> tail() const;

 private:
  void take(std::string_view text);
  void pass_on(std::string_view line);
  void show_progress();

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 16U;
  std::string tag_;
  KeptDescriptor from_;
  NonblockingWriter& to_;
  ChildLog& log_;
  std::string partial_;
  bool has_news_ = false;     // partial_ has grown since it was last shown
  mutable std::mutex mutex_;  // guards tail_, and the closing of from_
  std::deque<std::string> tail_;
};

}  // namespace syncrun::detail
