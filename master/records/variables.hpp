#pragma once

// Checks and texts about shared variables, for transfers and collectives: ranks, shapes and names.

#include <cstddef>
#include <string>

#include "common/arrays/extents.hpp"
#include "master/records/records.hpp"

namespace syncrun::detail::master::records {

inline std::size_t bytes_of(const VariableRecord& variable, const Extents& extents) {
  return arrays::checked_bytes(variable.dtype, {extents.data(), variable.dimensions});
}

/// Throws Error (usage) unless `rank` is a rank of the session. `what` names the caller.
void check_rank(int world_size, int rank, const char* what);

/// Throws Error (usage) if a copy on one of these ranks was lost. `what` names the caller.
void check_not_lost(const VariableRecord& variable, const Settled& settled, const protocol::RankSet& ranks,
                    const char* what);
/// The shape of the copies, which must be equal. Throws Error (usage) if they differ, or if a copy was lost. `what` names
/// the caller.
Extents equal_extents(const VariableRecord& variable, const Settled& settled, const char* what);
/// The shape of all copies concatenated along the rows. Throws Error (usage) if their rows differ in shape, or if a copy
/// was lost. `what` names the caller.
Extents extents_together(const VariableRecord& variable, const Settled& settled, const char* what);
/// Throws the errors of equal_extents().
void check_equal_copies(const VariableRecord& variable, const char* what);

/// The message that says why a call cannot use the copies on these ranks, some of which are not assigned: "'x' has no
/// values on rank 1 ...". It names the variable, the ranks and what to do.
std::string not_assigned(const VariableRecord& variable, const Settled& settled, const protocol::RankSet& ranks);

/// "weights, bias".
std::string names_of(VariableList variables);

}  // namespace syncrun::detail::master::records
