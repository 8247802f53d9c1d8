#pragma once

// Error: the one exception type that Syncrun throws. Its kind says what the caller can do about the error.

#include <chrono>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/detail/export.hpp"

namespace syncrun {

enum class ErrorKind;
struct Failure;

/// The type of every error that Syncrun throws. Copying an Error never throws. If the message is empty, what() names the
/// kind.
class SYNCRUN_EXPORT Error : public std::runtime_error {
 public:
  /// An error of this kind. `where` is the line of the caller, unless it is given. A program can throw it too.
  Error(ErrorKind kind, const std::string& message, int native_code = 0,
        std::source_location where = std::source_location::current());
  Error(ErrorKind kind, const std::string& message, Failure failure, int native_code = 0,
        std::source_location where = std::source_location::current());

  /// The kind of the error. It says what the caller can do.
  ErrorKind kind() const noexcept { return kind_; }
  /// The error code of the system call, CUDA call or NCCL call that failed: errno, a cudaError_t or an ncclResult_t.
  /// kind() says which one. For a lost
  /// worker, this is the worker's wait status. 0 if there is no code.
  int native_code() const noexcept { return native_code_; }
  /// The rank that caused the error, or -1.
  int rank() const noexcept;
  /// Which worker failed, and what it was doing. Its rank is -1 if no single worker caused the error.
  const Failure& failure() const noexcept { return *failure_; }
  /// The line that found the error, of the program or of Syncrun.
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  int native_code_;
  std::shared_ptr<const Failure> failure_;
  std::source_location where_;
};

/// The kinds of errors. They differ in what the caller can do.
enum class ErrorKind {
  usage,     ///< The call was wrong, and nothing was started. Correct the call. The session goes on.
  function,  ///< A replicated function, a producer's function or a task's function threw. The session goes on.
  system,    ///< A system call failed (memory, processes, files). native_code() is the errno.
  cuda,      ///< The CUDA runtime or driver failed on a worker.
  nccl,      ///< A collective failed inside NCCL.
  /// A worker, a producer or a task died. If it was a worker and Syncrun did not replace it, the session is over.
  /// Otherwise the session goes on.
  worker_lost,
  /// A deadline passed. If it was the deadline of a call, the session is over. If it was the deadline of a wait for a
  /// queue or a task, the caller can try again.
  timeout,
};

/// The name of a kind in error messages: "usage", "worker lost", ...
SYNCRUN_EXPORT std::string_view to_string(ErrorKind kind) noexcept;

/// The state of one worker when the deadline of a call passed. "The call" below is the call whose deadline passed.
struct RankState {
  int rank = -1;       ///< Rank of the worker.
  int pid = 0;         ///< Process id of the worker.
  std::string device;  ///< The worker's device, such as "cpu3".
  /// The name of the call that the worker was running. If the worker was idle, and had not finished the call whose
  /// deadline passed, this is the name of that call. If it was idle and had finished it, this is empty.
  std::string call;
  std::string phase;          ///< What the worker was doing: "function", "collective", "idle", ...
  bool takes_part = true;     ///< Whether the call runs on this worker.
  bool has_finished = false;  ///< Whether this worker had finished the call.
  bool is_behind = false;     ///< Whether other ranks were waiting for this worker in a collective of the call.
  /// A lower bound of the time for which the worker has made no progress. If the master was waiting for the call
  /// without a pause, the bound is too low by about 0.1 s at most. 0: the worker made progress, or the deadline was too
  /// short to tell.
  std::chrono::milliseconds no_progress_for{0};
  int stop_signal = 0;             ///< The signal that had stopped the worker (SIGSTOP, ...), or 0.
  int tracer = 0;                  ///< The process id of the debugger that traced the worker, or 0.
  std::string end;                 ///< How the worker had ended: "exited with code 0", ... Empty: it was alive.
  std::vector<std::string> stack;  ///< The native stacks of the worker's threads, one line per frame, innermost first.
  std::string no_stack;            ///< For a worker that caused the timeout: why `stack` is empty.
};

/// The first failure of a call or of a session: which worker failed, what it was doing, and why it failed.
struct Failure {
  int rank = -1;                         ///< Rank of the worker, or -1 if no single worker caused the failure.
  int pid = 0;                           ///< Process id of the worker.
  std::string device;                    ///< Device of the worker, such as "cpu3".
  std::string call;                      ///< The worker's current call. Empty if it was in no call.
  std::string phase;                     ///< What the worker was doing: "device", "function", "collective", ...
  std::string cause;                     ///< The name of a signal, an exit code, the text of an exception, ...
  std::vector<std::string> last_stderr;  ///< The last lines that the worker wrote to its standard error.
  /// If the process died of SIGSEGV, SIGBUS, SIGABRT, SIGFPE or SIGILL: the native stack of the thread that crashed, one
  /// line per frame, innermost first. For another thread than the main one, a line with its name comes first.
  std::vector<std::string> stack;
  std::string no_stack;  ///< If the process crashed: why `stack` is empty or incomplete.
  /// When the master stopped waiting because of this failure (steady clock).
  std::chrono::steady_clock::time_point master_released{};
  /// When each rank stopped waiting for its peers, by rank. For a rank that was not waiting, the value is the clock's
  /// epoch (a default time_point).
  std::vector<std::chrono::steady_clock::time_point> peers_released{};
  /// Shared variables that may be half written, because a call failed or did not finish. For a call of a function,
  /// these are its arguments of type Local<T, N>, through which a body can write, and the Update arguments of calls
  /// that depend on it. The state of a train step on CPU devices is not named if no rank had begun its update, nor are
  /// the parameters if the body is that of a loss of LibTorch. For a collective or a transfer, these are its variables. If
  /// a worker was replaced, this list also has the variables whose values Syncrun could not restore on the new worker.
  std::vector<std::string> undefined;
  std::vector<std::string> restored;  ///< Shared variables that Syncrun restored on a new worker from another copy.
  int respawned_pid = 0;              ///< Process id of the new worker of this rank, or 0.
  std::vector<RankState> ranks;       ///< If a deadline passed: the state of every rank, by rank. Empty otherwise.
  /// Index of the producer that failed, or -1. If a producer failed, the member `call` has the name of its queue. If a
  /// task failed, `call` has the name of the task.
  int producer = -1;
  std::string node;  ///< Name of the node of this producer, if the producers of its queue run on every node.
};

inline int Error::rank() const noexcept { return failure_->rank; }

}  // namespace syncrun
