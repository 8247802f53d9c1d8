#pragma once

// The file that gets a copy of a child's lines.

#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/file_descriptor.hpp"
#include "common/os/mutex.hpp"
#include "master/process/output_file.hpp"
#include "master/process/output_settings.hpp"

namespace syncrun::detail::master::process {

/// Used by one thread. Any thread may call is_intact().
class ChildLog {
 public:
  /// No file: write() does nothing.
  ChildLog() = default;
  /// Opens the file as open_output() does. Throws the same errors. If it would become larger than the limit, it gets
  /// another name, PATH.1, and a new file takes its place. PATH.1 becomes PATH.2 then, and so on.
  ChildLog(const std::string& path, OpenMode mode, LogLimit limit = {});

  /// Writes the whole text. Gives up on an error, such as a full disk. The next text is tried again.
  void write(std::string_view text) noexcept;
  const std::string& path() const noexcept { return path_; }
  /// False if the program has closed the descriptor of the file.
  bool is_intact() const;
  /// The errno of the first error, or 0. Lines are missing in the file then.
  int error() const noexcept { return error_; }

 private:
  /// Needs no lock: only the thread that calls this changes the descriptor.
  const os::KeptDescriptor& own_fd() const noexcept SYNCRUN_NO_THREAD_SAFETY_ANALYSIS { return fd_; }
  // These return false on an error, which they note.
  bool write_part(std::string_view text) noexcept;
  bool rotate() noexcept;
  bool note_error(int code) noexcept;

  mutable os::Mutex mutex_;
  std::string path_;
  os::KeptDescriptor fd_ SYNCRUN_GUARDED_BY(mutex_);
  LogLimit limit_;
  std::uint64_t bytes_ = 0;  // in the present file
  int error_ = 0;
};

}  // namespace syncrun::detail::master::process
