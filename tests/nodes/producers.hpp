#pragma once

// Producers on every node of a session.

#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>

namespace syncrun::test {

/// Takes all batches of a queue whose producers run on the first node ("first") or on every node ("every"), and prints
/// what calls return for them. The results do not depend on where the producers and the ranks run. Waits for a line of
/// input before the first batch and after the last one.
void take_batches(Session& session, std::string_view places);

/// Keeps batches, drops them in another order, writes to some, and reads rows that other ranks have. Then closes and drops
/// queues in the middle. Throws std::runtime_error if a value is wrong.
void use_batches_freely(Session& session);

/// Each node fills only the rows of its own ranks. Calls that divide them evenly read them, and everything else is refused.
void share_batches(Session& session);

/// A producer on this host does something else than on the others: "throws", "ends", "pushes fewer rows", "drops a draft".
/// Prints the error, and that the session goes on.
void break_one_node(Session& session, const std::string& host, const std::string& how);

/// Closes a queue whose producer 1 does not end on this host. Prints the error.
void close_in_vain(Session& session, const std::string& host);

/// Loses a worker of another node while its producers run, and goes on with the batch and with the next ones.
void lose_a_worker_between_batches(Session& session);

/// Waits for a batch that never comes, after it has said so. Prints the error.
void await_no_batch(Session& session);

/// If this is an action of these tests, runs it.
bool run_producers(Session& session, std::string_view action, const char* first, const char* second);

}  // namespace syncrun::test
