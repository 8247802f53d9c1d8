#pragma once

// Starts a process: fork and exec through Boost.Process, with the settings that must be made between the two.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::master::process {

/// SpawnRequest::dies_earlier_by of a child that has much less memory than its parent.
inline constexpr int kDiesEarlierBy = 100;

struct SpawnRequest {
  std::string program;                 ///< Path of the image to exec. "/proc/self/exe" is the image of this process.
  std::vector<std::string> arguments;  ///< argv, with the name first.
  /// Added to the present environment, or replacing parts of it.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> unset;  ///< Names that are removed from it.
  std::vector<int> inherited;      ///< Descriptors that the child keeps, under the same numbers.
  int standard_output = -1;        ///< The descriptor that becomes the child's standard output. -1: the same as here.
  int standard_error = -1;
  bool reads_input = false;  ///< Without it, the child reads /dev/null as its standard input.
  bool leads_group = false;  ///< The child leads a process group of its own.
  /// Signals that ask to stop wait until the child calls os::outlive_stop_signals(), because they are not for it.
  bool holds_stop_signals = false;
  /// The effect on the child of writing to a closed pipe.
  enum class BrokenPipe : std::uint8_t { ends_it, is_ignored };
  BrokenPipe broken_pipe = BrokenPipe::ends_it;
  /// If memory runs out, the kernel kills the child before this process, unless the child has much less memory: in the
  /// kernel's comparison, the child counts as if it had this many thousandths of the memory of the machine or control
  /// group more. 0: both are equal.
  int dies_earlier_by = 0;
  /// When the child wakes, it does not take the core of another process, but waits for its turn (SCHED_BATCH).
  bool waits_for_turn = false;
  std::vector<int> cores;  ///< Cores that the child is bound to before exec. Empty: the same as here.
  /// The NUMA node that the child's memory comes from, as long as that has some (MPOL_PREFERRED). Empty: the same as here.
  std::optional<int> memory_node{};
};

/// A child, and the descriptor that shows its death. No other process can get the pid before the child is reaped. If the
/// kernel has no pidfds, or a tool such as Valgrind does not support them, there is no descriptor.
struct SpawnedProcess {
  pid_t pid = -1;
  os::FileDescriptor pidfd;
};

/// Starts a process. The kernel kills it when the calling *thread* ends (PR_SET_PDEATHSIG). So call this from a thread
/// that lives as long as the child may. Throws Error (system) if fork or exec fails. The message names the program.
SpawnedProcess spawn(const SpawnRequest& request);

/// The oom_score_adj of a process that the kernel kills earlier than this one, as SpawnRequest::dies_earlier_by says.
/// Empty if the number of this process is not known.
std::string oom_score_after(int thousandths);

/// The wait status of a process that was reaped elsewhere, because the program ignores SIGCHLD or waits for any child.
inline constexpr int kUnknownStatus = -1;

/// How a process ended, in words: "exited with code 3", "killed by SIGSEGV (Segmentation fault)".
std::string describe_status(int wait_status);

}  // namespace syncrun::detail::master::process
