#pragma once

// A worker's standard output or standard error, as the master passes it on: whole lines, tagged with the rank.

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

class WorkerOutput {
 public:
  /// `from`: the read end of the worker's pipe. `to`: where tagged lines go. `log`: a copy without tags, or -1.
  WorkerOutput(int rank, FileDescriptor from, int to, int log);

  int fd() const noexcept { return from_.get(); }
  /// Reads what is there, without blocking. False at end of file (or if the pipe broke).
  bool pump();
  /// Writes out a last line that has no newline.
  void finish();
  /// The last lines, oldest first.
  std::vector<std::string> tail() const { return {tail_.begin(), tail_.end()}; }

 private:
  void take(std::string_view text);
  void write_line(std::string_view line);

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 16U;
  std::string tag_;
  FileDescriptor from_;
  int to_;
  int log_;
  std::string partial_;
  std::deque<std::string> tail_;
};

/// Writes all of it; gives up on an error: nobody is left to read. Blocks as long as the reader does.
void write_fully(int fd, std::string_view text) noexcept;

}  // namespace syncrun::detail
