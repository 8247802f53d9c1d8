#pragma once

// What every implementation of Transport promises, as a list of cases. All nodes run the same case, each with its own
// transport. The unit tests run them on the fake transport (transport_contract_test.cpp). A program runs them on MPI
// (transport_contract_program.cpp).

#include <span>

#include "master/nodes/transport.hpp"

namespace syncrun::test {

inline constexpr int kContractNodes = 3;

struct TransportPromise {
  enum class End { closes, does_not_close };

  /// "MessagesOfANodeArriveInOrder".
  const char* name;
  /// Every node calls it with a transport that is open. Throws std::logic_error if the promise is broken.
  void (*check)(detail::master::nodes::Transport& transport);
  /// `closes`: the caller closes the transport afterwards. Otherwise it cannot be closed in order, or was closed.
  End end;
};

std::span<const TransportPromise> transport_contract();

/// How long the caller gives close().
inline constexpr detail::os::Milliseconds kContractGrace{60'000};

}  // namespace syncrun::test
