#pragma once

// Uses Values in a session on several nodes.

#include <syncrun/syncrun.hpp>

namespace syncrun::test {

/// Makes, moves, reads and writes values on the ranks of all nodes, and compares them with what one process computes.
/// Throws std::runtime_error if they differ.
void use_values(Session& session);

/// Brings more values to the last rank than its node has memory for, while the rank is busy. Prints why calls have failed.
void bring_too_much(Session& session);

/// Brings a value from rank 2, which makes it for so many seconds, to the last rank, and waits for it there. Says when
/// the value is on its way.
void await_value(Session& session, double seconds);

}  // namespace syncrun::test
