#pragma once

// The report about the ranks when a deadline passes: which rank is to blame, where each rank is, and the stacks of the
// ranks that are stuck.

#include <string>
#include <vector>

#include "master/process/native_stack.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::process {

/// Returns the index of the rank that most likely keeps the others waiting: a stopped rank before a running one, and a
/// running one before one that waits for others. Returns -1 if all have finished by now.
int culprit_of(const std::vector<RankState>& states) noexcept;

/// Fills in the stacks of the ranks that do not wait for others. If all ranks wait for others, fills in all stacks.
/// Takes a limited time.
void take_stacks(std::vector<RankState>& states);

/// Fills in stacks that were taken, one for each state.
void put_stacks(std::vector<RankState>& states, std::vector<NativeStack> stacks);

/// "is in phase function, stopped by SIGSTOP".
std::string describe_phase(const RankState& state);

/// ", stopped by SIGSTOP". Empty if `signal` is 0.
std::string stop_suffix(int signal);

/// One indented line per rank, each followed by its stack. Begins with a newline. Empty if there are no ranks.
std::string report_of(const std::vector<RankState>& states);

}  // namespace syncrun::detail::master::process
