#pragma once

// A child's standard output or standard error, as the master passes it on: whole lines, tagged with who it is.

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_descriptor.hpp"
#include "launcher/outlet.hpp"

namespace syncrun::detail {

/// Used by one thread, but for `tail`.
class ChildOutput {
 public:
  /// `tag`: stands before every line. `from`: the read end of the child's pipe, which does not block. `to`: where tagged
  /// lines go, as long as this lives. `log`: a file for a copy without tags, or -1.
  ChildOutput(std::string tag, FileDescriptor from, Outlet& to, int log);

  int fd() const noexcept { return from_.get(); }
  Outlet& outlet() const noexcept { return to_; }
  /// Reads some of what is there, without blocking. False at end of file (or if the pipe broke).
  bool pump();
  /// Passes a last line on that has no newline, and closes the pipe.
  void finish();
  /// The last lines, oldest first. From any thread.
  std::vector<std::string> tail() const;

 private:
  void take(std::string_view text);
  void pass_on(std::string_view line);

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 16U;
  std::string tag_;
  FileDescriptor from_;
  Outlet& to_;
  int log_;
  std::string partial_;
  mutable std::mutex mutex_;  // guards tail_
  std::deque<std::string> tail_;
};

}  // namespace syncrun::detail
