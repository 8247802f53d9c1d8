#pragma once

// Sessions on several nodes that replace lost workers.

#include <string>
#include <syncrun/syncrun.hpp>

namespace syncrun::test {

/// Ranks of each node are lost in each phase of a call, and twice. Checks what the new workers have, and what the program
/// gets. Throws std::runtime_error if it is not as expected.
void lose_ranks_of_each_node(Session& session);

/// Calls functions with collectives, updates and moves for so many seconds, and prints which ranks were replaced meanwhile.
/// The test kills workers. At the end, all results have to be right.
void go_on_after_losses(Session& session, double seconds);

/// As lose_ranks_of_each_node(), for a worker that the test kills between two calls. Waits until the test says that it has.
void lose_between_calls(Session& session);

/// Loses this rank. The new worker cannot start, because workers end if the file `bad_start` exists.
void lose_for_good(Session& session, int rank, const std::string& bad_start);

}  // namespace syncrun::test
