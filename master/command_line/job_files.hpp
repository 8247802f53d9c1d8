#pragma once

// The files that tell a script about the job: --error-file and --pid-file. Both are opened before anything is started, so
// that a file that cannot be written is an error at the start. In a job on several nodes, the files of node N (but not of
// the first) end with .nodeN.

#include <string>

#include "common/os/file_descriptor.hpp"
#include "master/command_line/conclusion.hpp"

namespace syncrun::detail::master::command_line {

/// Says in JSON why the job has failed. The file exists after the job only if it failed. It is empty if `syncrun` itself was
/// killed.
class ErrorFile {
 public:
  /// With an empty path, there is no file. Throws Error (usage) if it cannot be written.
  ErrorFile(const std::string& path, int node);
  /// Writes the file, or removes it if the job went well. Throws Error (system) if it cannot be written.
  void conclude(const Conclusion& conclusion);

 private:
  std::string path_;
  os::FileDescriptor fd_;
};

/// The contents of an error file.
std::string error_json(const Conclusion& conclusion);

/// The process id of `syncrun`, as long as this object lives.
class PidFile {
 public:
  PidFile(const std::string& path, int node);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
  os::FileDescriptor fd_;
};

}  // namespace syncrun::detail::master::command_line
