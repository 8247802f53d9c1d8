#pragma once

// `syncrun stacks`: prints the native stacks of the processes of a running job.

#include <span>

namespace syncrun::detail::master::inspect {

/// Runs the subcommand with the words after its name. Returns the exit code: 1 if a stack is missing.
int show_stacks(std::span<char* const> words);

}  // namespace syncrun::detail::master::inspect
