#pragma once

// Environment variables: those that `syncrun` sets for the master, those that the master sets for its workers, and
// those for users. Also functions that read them.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::environment {

// Set by `syncrun` for the master; users may set them as well.
inline constexpr const char* kDevices = "SYNCRUN_DEVICES";             // "cpu0,cpu1"
inline constexpr const char* kProcesses = "SYNCRUN_NPROC_PER_NODE";    // "4", "cpu", "gpu", "auto"
inline constexpr const char* kTimeout = "SYNCRUN_TIMEOUT";             // seconds, may have a fraction
inline constexpr const char* kStartTimeout = "SYNCRUN_START_TIMEOUT";  // seconds
inline constexpr const char* kLogDir = "SYNCRUN_LOG_DIR";
inline constexpr const char* kLogLevel = "SYNCRUN_LOG_LEVEL";
inline constexpr const char* kProfile = "SYNCRUN_PROFILE";        // a file, or "-" for standard error
inline constexpr const char* kTrace = "SYNCRUN_TRACE";            // a file
inline constexpr const char* kTag = "SYNCRUN_TAG";                // on or off: the rank before each line
inline constexpr const char* kTimestamps = "SYNCRUN_TIMESTAMPS";  // on or off: the time before each line
inline constexpr const char* kOnlyRank = "SYNCRUN_ONLY_RANK";     // ranks that are shown: "0,2-5" or "all"
inline constexpr const char* kTee = "SYNCRUN_TEE";                // ranks that have a file
inline constexpr const char* kRedirect = "SYNCRUN_REDIRECT";      // ranks that have a file and are not shown
inline constexpr const char* kLogSize = "SYNCRUN_LOG_SIZE";       // "100M:3"
inline constexpr const char* kMetrics = "SYNCRUN_METRICS";        // a file, unix:PATH or a port
inline constexpr const char* kQuiet = "SYNCRUN_QUIET";  // on or off: no line at the start lists the ranks and devices
inline constexpr const char* kRestart = "SYNCRUN_RESTART";  // how often the program was restarted; unset if never
inline constexpr const char* kSupervisorFd = "SYNCRUN_SUPERVISOR_FD";  // see supervisor_link.hpp
inline constexpr const char* kNodeTimeout = "SYNCRUN_NODE_TIMEOUT";    // seconds, may have a fraction
inline constexpr const char* kTreeFrom = "SYNCRUN_TREE_FROM";          // a number of nodes
inline constexpr const char* kBindTo = "SYNCRUN_BIND_TO";
inline constexpr const char* kReportBindings = "SYNCRUN_REPORT_BINDINGS";
inline constexpr const char* kWrap = "SYNCRUN_WRAP";                   // lines such as "0,2:gdb --args"
inline constexpr const char* kWrapTerminal = "SYNCRUN_WRAP_TERMINAL";  // a command that runs wrappers in terminals

/// Options of one job. They are for one process: the first that has begun with them. kOptionsOf contains its pid, and
/// hashes of their values. A program that this process executes in its place has them too. A program that it starts is a
/// job of its own, which would write to the same files, open the same port, or lack a rank.
inline constexpr std::array kOfOneJob{kLogDir,  kTee,   kRedirect, kLogSize, kOnlyRank,
                                      kProfile, kTrace, kMetrics,  kWrap,    kWrapTerminal};
inline constexpr const char* kOptionsOf = "SYNCRUN_OPTIONS_OF";
/// Makes those empty that are for another process.
void drop_options_of_another_job();
/// Drops those of another job, and marks the others as those of this process. Called when main() begins.
void take_options_of_job();

// Set by `syncrun` for the program if the job has several nodes. The program unsets it when it begins.
inline constexpr const char* kNode = "SYNCRUN_NODE";  // the number of this node; 0 is the master's

// Set by `syncrun` if the job has several nodes: what identifies the engine's job. It stays set in all processes of the
// job. So a `syncrun` that one of them starts knows that the engine has not started it. In another job of an engine, it
// has no meaning.
inline constexpr const char* kInJob = "SYNCRUN_IN_JOB";

// For users. Nothing in Syncrun sets these.
inline constexpr const char* kReserveBytes = "SYNCRUN_RESERVE_BYTES";  // address space to reserve for shared memory
inline constexpr const char* kContexts = "SYNCRUN_CONTEXTS";           // "dev0->cpu0;dev1->cpu1"
inline constexpr const char* kMemoryCheck = "SYNCRUN_MEMORY_CHECK";    // "off": allocate past the memory limit
inline constexpr const char* kDumpShared =
    "SYNCRUN_DUMP_SHARED";  // "on": core files have the used pages of the segment
inline constexpr const char* kGpuMemoryFraction = "SYNCRUN_GPU_MEMORY_FRACTION";  // 0.5: half of each GPU's memory
inline constexpr const char* kReduceByNode = "SYNCRUN_REDUCE_BY_NODE";  // "off": one step for all GPUs of all nodes
inline constexpr const char* kNodeLinks = "SYNCRUN_NODE_LINKS";  // "off", or the interface for connections of ranks

// The master sets these for a worker. The worker unsets them once it is attached, so that its own children do not
// believe that they are workers. Anybody can set them, so a worker does not trust them without further checks (see
// worker/process/parentage.hpp).
inline constexpr const char* kWorkerRank = "SYNCRUN_WORKER_RANK";
inline constexpr const char* kSegmentFd = "SYNCRUN_SEGMENT_FD";
inline constexpr const char* kSegmentBytes = "SYNCRUN_SEGMENT_BYTES";
inline constexpr const char* kSocketFd = "SYNCRUN_SOCKET_FD";
inline constexpr const char* kDevice = "SYNCRUN_DEVICE";
inline constexpr const char* kMasterPid = "SYNCRUN_MASTER_PID";
inline constexpr const char* kIsWrapped = "SYNCRUN_IS_WRAPPED";  // "1": its parent may be a wrapper

// The master sets these, and some of those above, for a helper process (a producer or a task).
inline constexpr const char* kHelper = "SYNCRUN_HELPER";         // its index among the helpers with the same spec
inline constexpr const char* kSpecFd = "SYNCRUN_SPEC_FD";        // see helper_spec.hpp
inline constexpr const char* kChannelFd = "SYNCRUN_CHANNEL_FD";  // a task's pipe

// This variable stays set in workers and helpers, and so in all processes that their bodies start. It identifies the
// processes that have left the process group of their worker, so that they can be killed when the master dies. See
// worker/process/offspring.hpp.
inline constexpr const char* kJob = "SYNCRUN_JOB";

/// The variables that only Syncrun sets. `syncrun` removes them from the environment of the program that it starts, unless
/// it sets them itself.
inline constexpr std::array kInternal{kWorkerRank, kSegmentFd, kSegmentBytes, kSocketFd, kDevice,
                                      kMasterPid,  kIsWrapped, kHelper,       kSpecFd,   kChannelFd,
                                      kJob,        kNode,      kInJob,        kOptionsOf};

// Variables that other launchers set too. The master sets them for workers, and they stay set.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kMasterAddress = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";
inline constexpr const char* kNodeRank = "NODE_RANK";

/// Whether this program has more privileges than the user who started it (set-user-ID, set-group-ID, file capabilities;
/// see AT_SECURE in getauxval(3)). Its environment must not be trusted then.
bool is_privileged() noexcept;

/// Whether Valgrind runs this process.
bool is_in_valgrind() noexcept;

/// The value of a variable. Null if it is not set, and always null in a program with raised privileges.
SYNCRUN_EXPORT_FOR_CUDA const char* get(const char* name) noexcept;

/// Whether a variable is a switch that is on ("on" or "1") or off ("off" or "0"). Empty if it is not set, or is empty. Throws
/// Error (usage) if it has another value.
SYNCRUN_EXPORT_FOR_CUDA std::optional<bool> switch_in(const char* name);

/// The whole text as a decimal number. Empty if the text is not one, or is out of range.
std::optional<std::int64_t> whole_number(const char* text) noexcept;

/// Throws Error (usage): "NAME: expected ..., got 'VALUE'".
[[noreturn]] void throw_bad_value(const char* name, const std::string& value, const std::string& expected);

}  // namespace syncrun::detail::environment
