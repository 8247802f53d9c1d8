#pragma once

// Files that the user has named for us to write: logs, traces, profiles. Opening one never waits and never touches another
// file than the one that has this name: it follows no symbolic link, and a named pipe, a folder or a disk is refused.

#include <cstdint>
#include <string>
#include <string_view>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

enum class OpenMode : std::uint8_t {
  empty,            ///< What the file had is gone.
  append_to_empty,  ///< The same, and several processes may write to it.
  append,           ///< What the file had stays.
};

/// Opens a regular file, which is made where there is none, or a character device (/dev/null, a terminal). The names of this
/// process's own descriptors, /dev/stdout, /dev/stderr and /dev/fd/N, stand for what they are open to, which may be a
/// socket too; that is not emptied. `what` it is, for messages: "the trace". Throws Error (usage) if it is something else
/// or a symbolic link, Error (system) if it cannot be opened.
FileDescriptor open_output(const std::string& path, OpenMode mode, const std::string& what);

/// An output file that is written in parts of some size. What goes wrong is said by close().
class OutputFile {
 public:
  /// As open_output, emptied.
  OutputFile(std::string path, std::string what);
  /// Writes the rest, and loses it where that fails.
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
  KeptDescriptor fd_;
  std::string waiting_;
  int error_ = 0;  // the first errno of a write
};

}  // namespace syncrun::detail
