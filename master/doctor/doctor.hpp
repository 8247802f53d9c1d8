#pragma once

// `syncrun doctor`: will a job run here, and how fast?

#include <span>
#include <string>

namespace syncrun::detail::master::doctor {

inline constexpr const char* kArguments = "[--json]";

/// Looks at this node, measures it, and prints what it has found. If srun or mpirun has started this process on several
/// nodes, each of them reports itself, and the first one also measures the ways between them. Returns the exit code: 1 if
/// something is wrong. Throws Error (usage) for a word that is not --json.
int run_doctor(std::span<char* const> words);

}  // namespace syncrun::detail::master::doctor
