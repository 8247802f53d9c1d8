#pragma once

// Output files that the user has named: logs, traces, profiles. Opening one never waits, and never writes to a file
// other than the one with this name. Symbolic links are not followed. Named pipes, folders and block devices are
// refused.

#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::master::process {

enum class OpenMode : std::uint8_t {
  empty,            ///< Removes the present contents.
  append_to_empty,  ///< Removes the present contents. Several processes may then write to the file.
  append,           ///< Keeps the present contents.
};

/// Opens a regular file, which is created if it does not exist, or a character device (/dev/null, a terminal). The
/// names of this process's own descriptors, /dev/stdout, /dev/stderr and /dev/fd/N, stand for what these descriptors
/// refer to. That may also be a socket, and it is not emptied. `what` names the file in messages: "the trace". Throws
/// Error (usage) if the path is something else or a symbolic link, and Error (system) if it cannot be opened.
os::FileDescriptor open_output(const std::string& path, OpenMode mode, const std::string& what);

/// An output file that is written in larger parts. close() reports the errors of all writes.
class OutputFile {
 public:
  /// Opens the file as open_output() does, and empties it.
  OutputFile(std::string path, std::string what);
  /// Writes the rest. An error is ignored.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view text);
  /// Writes the rest. Throws Error (system) if anything could not be written.
  void close();

 private:
  void flush() noexcept;

  static constexpr std::size_t kPartBytes = 4096;
  std::string path_;
  std::string what_;
  os::KeptDescriptor fd_;
  std::string waiting_;
  int error_ = 0;  // errno of the first write that failed
};

}  // namespace syncrun::detail::master::process
