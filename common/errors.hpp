#pragma once

// Ways to throw Error that say what was tried, in one line at the place of the check.

#include <cerrno>
#include <source_location>
#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail {

/// Throws Error (system) with `what` and errno's text.
[[noreturn]] void throw_errno(const std::string& what, int code = errno,
                              std::source_location where = std::source_location::current());

/// Throws Error (usage).
[[noreturn]] void throw_usage(const std::string& message, std::source_location where = std::source_location::current());

/// Returns `result` unless it is -1, then throws errno's error.
template <class T>
T check_system(T result, const char* what, std::source_location where = std::source_location::current()) {
  if (result == static_cast<T>(-1)) throw_errno(what, errno, where);
  return result;
}

/// Of the exception that is being handled: its text, or that it has none.
std::string describe_current_exception();

/// "SIGSEGV (segmentation fault)", also for real-time signals.
std::string signal_name(int signal);

}  // namespace syncrun::detail
