#pragma once

// What Syncrun throws: one exception type, with a kind that says what a caller can do about it.

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

/// Every error of Syncrun. Copying it never throws.
class SYNCRUN_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int native_code = 0,
        std::source_location where = std::source_location::current());
  Error(ErrorKind kind, const std::string& message, Failure failure, int native_code = 0,
        std::source_location where = std::source_location::current());

  ErrorKind kind() const noexcept { return kind_; }
  /// errno, cudaError_t or ncclResult_t, by kind; 0 where there is none.
  int native_code() const noexcept { return native_code_; }
  /// The rank to blame, or -1.
  int rank() const noexcept;
  const Failure& failure() const noexcept { return *failure_; }
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  int native_code_;
  std::shared_ptr<const Failure> failure_;
  std::source_location where_;
};

/// What went wrong, told apart by what the caller can do about it.
enum class ErrorKind {
  usage,        ///< The call was wrong; nothing was started. Mend the call; the session goes on.
  function,     ///< A replicated function (a producer's, a task's) threw. The session goes on.
  system,       ///< The operating system refused (memory, processes, files); native_code() is the errno.
  cuda,         ///< The CUDA runtime or driver failed on a worker.
  nccl,         ///< A collective failed inside NCCL.
  worker_lost,  ///< A worker process died, and the session is over, unless it was respawned; or a producer or a task died.
  timeout,      ///< A deadline passed. Of a call: the session is over. Of a queue or a task: can be tried again.
};

/// The word for a kind, as it stands in messages: "usage", "worker lost", ...
SYNCRUN_EXPORT std::string_view to_string(ErrorKind kind) noexcept;

/// Where a worker was when a deadline passed.
struct RankState {
  int rank = -1;
  int pid = 0;
  std::string device;         ///< Such as "cpu3".
  std::string call;           ///< The call it was in, or that it was to begin next; empty outside any.
  std::string phase;          ///< What it was doing: "function", "collective", "idle", ...
  bool takes_part = true;     ///< The call that is late runs on it.
  bool has_finished = false;  ///< It was done with the call that is late.
  bool is_behind = false;     ///< Others had come further in the call's collectives: they wait for it.
  /// The age of its heartbeat: it was not seen to move for at least this long, and for about 0.1 s more at most if it
  /// was watched all the time. 0: it was seen to move, or the deadline was too short to tell.
  std::chrono::milliseconds no_progress_for{0};
  int stop_signal = 0;             ///< The signal it stood still by (SIGSTOP, ...), or 0.
  int tracer = 0;                  ///< The process id of the debugger that traced it, or 0.
  std::string end;                 ///< How it had ended by then, such as "exited with code 0"; empty: it was alive.
  std::vector<std::string> stack;  ///< The native stacks of its threads, innermost frame first, a line each.
  std::string no_stack;            ///< Why there is none of a worker that is to blame; empty where none was wanted.
};

/// Which worker failed, where it was, and why: the first failure of a call or of a session.
struct Failure {
  int rank = -1;                         ///< Rank of the worker, or -1 where no single worker is to blame.
  int pid = 0;                           ///< Its process id.
  std::string device;                    ///< Its device, such as "cpu3".
  std::string call;                      ///< The call it was in, or empty outside any.
  std::string phase;                     ///< What it was doing: "device", "function", "collective", ...
  std::string cause;                     ///< Signal by name, exit code, exception text, ...
  std::vector<std::string> last_stderr;  ///< The last lines the worker wrote to its standard error.
  /// When the master stopped waiting because of this failure (steady clock).
  std::chrono::steady_clock::time_point master_released{};
  /// When each rank stopped waiting for its peers; the clock's epoch for ranks that were not waiting.
  std::vector<std::chrono::steady_clock::time_point> peers_released{};
  /// Shared variables that a call which failed may have half written: the Local ones of functions in flight, those of a
  /// collective or transfer that was not over; and, where a new worker has come, those that it could not be given.
  std::vector<std::string> undefined;
  std::vector<std::string> restored;  ///< Shared variables that a new worker was given from a peer's copy.
  int respawned_pid = 0;              ///< Process id of the new worker that has the rank now; 0: there is none.
  std::vector<RankState> ranks;       ///< After a deadline: where every rank was, by rank. Empty otherwise.
  int producer = -1;  ///< Index of the producer to blame, or -1; `call` is its queue. Of a task `call` is the name.
};

inline int Error::rank() const noexcept { return failure_->rank; }

}  // namespace syncrun
