#pragma once

// Environment variables: between `syncrun` and the master, between the master and its workers, and for users. Who may be
// believed, and how they are read.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace syncrun::detail::environment {

// Set by `syncrun` for the master; users may set them as well.
inline constexpr const char* kDevices = "SYNCRUN_DEVICES";             // "cpu0,cpu1"
inline constexpr const char* kProcesses = "SYNCRUN_NPROC_PER_NODE";    // "4", "cpu", "gpu", "auto"
inline constexpr const char* kTimeout = "SYNCRUN_TIMEOUT";             // seconds, may have a fraction
inline constexpr const char* kStartTimeout = "SYNCRUN_START_TIMEOUT";  // seconds
inline constexpr const char* kLogDir = "SYNCRUN_LOG_DIR";
inline constexpr const char* kLogLevel = "SYNCRUN_LOG_LEVEL";
inline constexpr const char* kProfile = "SYNCRUN_PROFILE";  // a file, or "-" for standard error
inline constexpr const char* kTrace = "SYNCRUN_TRACE";      // a file
inline constexpr const char* kQuiet = "SYNCRUN_QUIET";  // set: no line at start that says which rank is on which device
inline constexpr const char* kRestart = "SYNCRUN_RESTART";  // how often the program was started again; unset: not
inline constexpr const char* kSupervisorFd = "SYNCRUN_SUPERVISOR_FD";  // see supervisor_link.hpp

// For users in need.
inline constexpr const char* kReserveBytes = "SYNCRUN_RESERVE_BYTES";  // address space to reserve for shared memory
inline constexpr const char* kMemoryCheck = "SYNCRUN_MEMORY_CHECK";    // "off": allocate past the memory limit

// Set by the master for a worker, and unset by the worker once it is attached, so that its own children are not taken
// for workers. Anybody can set them: see worker/parentage.hpp for what is checked before they are believed.
inline constexpr const char* kWorkerRank = "SYNCRUN_WORKER_RANK";
inline constexpr const char* kSegmentFd = "SYNCRUN_SEGMENT_FD";
inline constexpr const char* kSegmentBytes = "SYNCRUN_SEGMENT_BYTES";
inline constexpr const char* kSocketFd = "SYNCRUN_SOCKET_FD";
inline constexpr const char* kDevice = "SYNCRUN_DEVICE";
inline constexpr const char* kMasterPid = "SYNCRUN_MASTER_PID";

// The same for a helper process (a producer, a task), besides some of the above.
inline constexpr const char* kHelper = "SYNCRUN_HELPER";         // its index among those of the same order
inline constexpr const char* kOrderFd = "SYNCRUN_ORDER_FD";      // see helper_order.hpp
inline constexpr const char* kChannelFd = "SYNCRUN_CHANNEL_FD";  // a task's pipe

// Stays in workers and helpers, and so in all that their bodies start: by it, what has left its worker's process group is
// found when the master dies. See worker/offspring.hpp.
inline constexpr const char* kJob = "SYNCRUN_JOB";

/// What only a master sets. `syncrun` keeps them from the program that it starts.
inline constexpr std::array kInternal{kWorkerRank, kSegmentFd, kSegmentBytes, kSocketFd,  kDevice,
                                      kMasterPid,  kHelper,    kOrderFd,      kChannelFd, kJob};

// The field's conventional ones: set for workers, and they stay.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";

/// Whether this program runs with more privileges than whoever started it has (set-user-ID, set-group-ID, file
/// capabilities; AT_SECURE in getauxval(3)). Its environment is then a stranger's.
bool is_privileged() noexcept;

/// A variable's value; null where it is not set, and for all of them in a program with raised privileges.
const char* get(const char* name) noexcept;

/// The whole text as a number. Nothing if it is not a number.
std::optional<std::int64_t> whole_number(const char* text) noexcept;

/// Throws Error (usage): "NAME: expected ..., got 'VALUE'".
[[noreturn]] void throw_bad_value(const char* name, const std::string& value, const std::string& expected);

}  // namespace syncrun::detail::environment
