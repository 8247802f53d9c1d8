#pragma once

// Ways to throw Error that say what was tried, in one line at the place of the check.

#include <cerrno>
#include <exception>
#include <source_location>
#include <string>

#include "common/export_for_cuda.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// Throws Error (system) with `what` and errno's text.
[[noreturn]] void throw_errno(const std::string& what, int code = errno,
                              std::source_location where = std::source_location::current());

/// The same where a process was refused: says which limits there are.
[[noreturn]] void throw_no_process(const std::string& what, int code,
                                   std::source_location where = std::source_location::current());

/// Error (system, EBADF): the program has closed descriptors that we need. `what` they are: "the shared memory".
Error descriptors_closed(const std::string& what, std::source_location where = std::source_location::current());

/// The same where a thread was refused: for want of processes, or of memory for its stack.
[[noreturn]] void throw_no_thread(int code, std::source_location where = std::source_location::current());

/// "ulimit -n is 64": what a limit of this process is (RLIMIT_AS, _DATA, _FSIZE, _NOFILE or _NPROC).
std::string limit_text(int resource);

/// Throws Error (usage).
[[noreturn]] SYNCRUN_EXPORT_FOR_CUDA void throw_usage(const std::string& message,
                                                      std::source_location where = std::source_location::current());

/// Returns `result` unless it is -1, then throws errno's error.
template <class T>
T check_system(T result, const char* what, std::source_location where = std::source_location::current()) {
  if (result == static_cast<T>(-1)) throw_errno(what, errno, where);
  return result;
}

/// What a caught exception says. The programs of users have exceptions whose what() is null: their type is named instead.
std::string text_of(const std::exception& error);

/// Of the exception that is being handled: its text, or that it has none.
std::string describe_current_exception();

/// "SIGSEGV (segmentation fault)", also for real-time signals.
std::string signal_name(int signal);

}  // namespace syncrun::detail
