#pragma once

// `syncrun attach RANK`: attaches gdb to a worker of a running job.

#include <span>

namespace syncrun::detail::master::inspect {

/// Runs the subcommand with the words after its name. Becomes gdb, so it returns only by an Error (usage, system).
int attach_gdb(std::span<char* const> words);

}  // namespace syncrun::detail::master::inspect
