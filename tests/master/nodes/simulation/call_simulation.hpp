#pragma once

// Simulates empty calls of a session on several nodes, in virtual time: the command table, RemoteNodes and Agent are
// those of the product. There are no processes. The workers of a node are done a fixed time after they have got a
// command.

#include <chrono>
#include <cstddef>
#include <optional>

#include "tests/master/nodes/simulation/timed_network.hpp"

namespace syncrun::test {

struct SimulatedSession {
  int nodes = 2;
  int ranks_of_each = 8;
  /// How many children a node has in the tree of nodes at most. None: a star, the master sends to all nodes itself.
  std::optional<int> fan_out;
  NetworkCosts network{};
  std::chrono::nanoseconds here{};     // an empty call on one node
  std::chrono::nanoseconds workers{};  // from a command that the workers of an agent get to the agent's report
};

/// One call.
struct SimulatedCall {
  std::chrono::nanoseconds time;
  // by the master
  std::size_t messages_sent;
  std::size_t bytes_sent;
  // by the agent of node 1
  std::size_t bytes_reported;
  // What the code of the master really took in this process, together with that of the fake transport. The time above
  // does not contain it.
  std::chrono::nanoseconds send_code;
  std::chrono::nanoseconds take_code;
};

/// Makes empty calls on all ranks, one after the other. Returns the last of them, with the shortest times of code among
/// all. Throws std::logic_error if one does not finish on all ranks.
SimulatedCall simulate_empty_calls(const SimulatedSession& session, int calls);

}  // namespace syncrun::test
