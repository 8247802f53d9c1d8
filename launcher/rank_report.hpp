#pragma once

// What is said about the ranks when a deadline passes: who is to blame, where each of them is, and the stacks of those
// that are stuck.

#include <string>
#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail {

/// The index of the rank that keeps the others: a stopped one before one that runs, and that before one that waits for
/// others. -1 if all have finished by now.
int culprit_of(const std::vector<RankState>& states) noexcept;

/// Fills in stacks: of the ranks that do not wait for others; if all do, of all. Bounded.
void take_stacks(std::vector<RankState>& states);

/// "is in phase function, stopped by SIGSTOP".
std::string describe_phase(const RankState& state);

/// ", stopped by SIGSTOP"; nothing for 0.
std::string stop_suffix(int signal);

/// One indented line per rank, each followed by its stack; begins with a newline. Empty without ranks.
std::string report_of(const std::vector<RankState>& states);

}  // namespace syncrun::detail
