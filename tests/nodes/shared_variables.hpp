#pragma once

// Uses shared variables in a session on several nodes.

#include <syncrun/syncrun.hpp>

namespace syncrun::test {

/// Assigns, changes and reads variables, and compares them with what one process computes. Throws std::runtime_error if
/// they differ.
void use_shared_variables(Session& session);

}  // namespace syncrun::test
