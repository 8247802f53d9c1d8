#pragma once

// What new workers get of what the lost ones had.

#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail {

class SessionCore;

/// Copies of variables from a peer, where the master has last made all copies equal; objects by their constructors. What was
/// restored, and what is undefined since nobody has it or it may be half written, is added to the failure.
void pass_on(SessionCore& session, const std::vector<int>& ranks, Failure& failure);

/// No variable has a copy on this rank any more.
void forget_copies(SessionCore& session, int rank);

}  // namespace syncrun::detail
