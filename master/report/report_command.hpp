#pragma once

// The subcommand `syncrun report`.

#include <span>

namespace syncrun::detail::master::report {

/// Gets the words after `syncrun report`. Returns the exit code. Throws Error (usage) if they are wrong or the file is
/// no profile, and Error (system) if the page cannot be written.
int run_report(std::span<char* const> words);

}  // namespace syncrun::detail::master::report
