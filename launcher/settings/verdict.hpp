#pragma once

// The last words of a program that fails.

#include <string>

namespace syncrun::detail {

/// Says why the program fails. `syncrun` prints it as its last line. Without `syncrun`, this function prints it.
void report_verdict(const std::string& verdict) noexcept;

}  // namespace syncrun::detail
