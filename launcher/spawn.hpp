#pragma once

// Birth of a process: fork and exec through Boost.Process, with what must be set in between.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

struct SpawnRequest {
  std::string program;                 ///< Path of the image to exec; "/proc/self/exe" for this very one.
  std::vector<std::string> arguments;  ///< argv, the name first.
  std::vector<std::pair<std::string, std::string>> environment;  ///< Added to (or replacing) the present one.
  std::vector<std::string> unset;                                ///< Names taken out of it.
  std::vector<int> inherited;  ///< Descriptors the child keeps, under the same numbers.
  int standard_output = -1;    ///< Descriptor that becomes the child's, or -1: as here.
  int standard_error = -1;
  bool leads_group = false;  ///< The child leads a process group of its own.
  /// What a write to a closed pipe does to the child.
  enum class BrokenPipe : std::uint8_t { ends_it, is_ignored };
  BrokenPipe broken_pipe = BrokenPipe::ends_it;
  std::vector<int> cores;  ///< Cores it is bound to before exec; empty: as here.
};

/// A child and the way to see its death. The pid stays ours until it is reaped.
struct SpawnedProcess {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

/// Starts a process. It is killed when the calling *thread* ends (PR_SET_PDEATHSIG): call from one that lives as long as
/// the child may. Throws Error (system) if fork or exec fails, with what could not be started.
SpawnedProcess spawn(const SpawnRequest& request);

/// The wait status of a process that somebody else has reaped: the program ignores SIGCHLD, or waits for any child.
inline constexpr int kUnknownStatus = -1;

/// How a process ended, in words: "exited with code 3", "killed by SIGSEGV (Segmentation fault)".
std::string describe_status(int wait_status);

}  // namespace syncrun::detail
