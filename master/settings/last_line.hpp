#pragma once

// The last words of a program that fails.

#include <exception>
#include <string>

namespace syncrun::detail::master::settings {

/// Says why the program fails. `syncrun` prints it as its last line. Without `syncrun`, this function prints it.
void report_last_line(const std::string& verdict) noexcept;

/// Tells `syncrun` the rank, the phase, the stack and so on of an error, for --error-file. report_last_line() follows.
/// Does nothing without `syncrun`.
void report_details(const std::exception& error) noexcept;

}  // namespace syncrun::detail::master::settings
