#pragma once

// A child's standard output or standard error, as the master passes it on: lines, tagged with who it is. A log has them as
// they came; how they are shown is the outlet's to say.

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
  /// lines go. `log`: a file for a copy without tags, or not open. Both are referred to as long as this lives.
  ChildOutput(std::string tag, FileDescriptor from, Outlet& to, const KeptDescriptor& log);

  int fd() const noexcept { return from_.get(); }
  /// False once the program has closed the pipe, which finish() has not. From any thread.
  bool is_intact() const;
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
  void show_progress();

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 16U;
  std::string tag_;
  KeptDescriptor from_;
  Outlet& to_;
  const KeptDescriptor& log_;
  std::string partial_;
  bool has_news_ = false;     // in partial_, since it was shown
  mutable std::mutex mutex_;  // guards tail_, and from_ where it is closed
  std::deque<std::string> tail_;
};

}  // namespace syncrun::detail
