#pragma once

// Functions that throw Error with a message that says what failed. Each takes one line at the place of the check.

#include <cerrno>
#include <exception>
#include <source_location>
#include <string>

#include "common/export_for_cuda.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::text {

/// Throws Error (system) with `what` and errno's text.
[[noreturn]] void throw_errno(const std::string& what, int code = errno,
                              std::source_location where = std::source_location::current());

/// Throws Error (system) if the system refused to start a process. If `code` is EAGAIN, the message contains the limits
/// on processes.
[[noreturn]] void throw_no_process(const std::string& what, int code,
                                   std::source_location where = std::source_location::current());

/// Returns an Error (system, EBADF) for the case that the program has closed descriptors that Syncrun uses. `what` says
/// what they were for, for example "the shared memory".
Error descriptors_closed(const std::string& what, std::source_location where = std::source_location::current());

/// Throws Error (system) if the system refused to start a thread. The message says whether a limit on processes is the
/// reason, or a lack of memory for the stack.
[[noreturn]] void throw_no_thread(int code, std::source_location where = std::source_location::current());

/// Describes a limit of this process (RLIMIT_AS, _DATA, _FSIZE, _NOFILE or _NPROC), for example "ulimit -n is 64".
std::string limit_text(int resource);

/// Throws Error (usage).
[[noreturn]] SYNCRUN_EXPORT_FOR_CUDA void throw_usage(const std::string& message,
                                                      std::source_location where = std::source_location::current());

/// Returns `result`. If it is -1, throws Error (system) with errno's text instead.
template <class T>
T check_system(T result, const char* what, std::source_location where = std::source_location::current()) {
  if (result == static_cast<T>(-1)) throw_errno(what, errno, where);
  return result;
}

/// The text of a caught exception. The texts of nested exceptions (std::throw_with_nested) follow it, the innermost last.
/// If a what() is null, which happens in user programs, the text names the type instead.
std::string full_text_of(const std::exception& error);

/// The text of the exception that is being handled. If it is not a std::exception, the text is `who_threw`, for example
/// "the program threw ", followed by "an exception that is not a std::exception", its type, and its value if this is a
/// text or an int.
std::string describe_current_exception(const char* who_threw = "");

/// The exception as an Error: a copy of it if it is one, and otherwise an Error of the kind `otherwise` with its text.
Error as_error(const std::exception_ptr& exception, ErrorKind otherwise);

/// The name and the description of a signal, for example "SIGSEGV (Segmentation fault)". A signal without a name, such
/// as a real-time signal, is "signal N".
std::string signal_name(int signal);

}  // namespace syncrun::detail::text
