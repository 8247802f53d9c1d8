#pragma once

// What Syncrun throws: one exception type, with a kind that says what a caller can do about it.

#include <chrono>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun {

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
std::string_view to_string(ErrorKind kind) noexcept;

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
  int producer = -1;  ///< Index of the producer to blame, or -1; `call` is its queue. Of a task `call` is the name.
};

/// Every error of Syncrun. Copying it never throws.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int native_code = 0,
        std::source_location where = std::source_location::current());
  Error(ErrorKind kind, const std::string& message, Failure failure, int native_code = 0,
        std::source_location where = std::source_location::current());

  ErrorKind kind() const noexcept { return kind_; }
  /// errno, cudaError_t or ncclResult_t, by kind; 0 where there is none.
  int native_code() const noexcept { return native_code_; }
  /// The rank to blame, or -1.
  int rank() const noexcept { return failure_->rank; }
  const Failure& failure() const noexcept { return *failure_; }
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  int native_code_;
  std::shared_ptr<const Failure> failure_;
  std::source_location where_;
};

}  // namespace syncrun
