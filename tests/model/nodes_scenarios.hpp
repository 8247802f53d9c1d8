#pragma once

// The parts of scenarios on several nodes, and the two tests that explore them.

#include <gtest/gtest.h>

#include "tests/model/explorer.hpp"
#include "tests/model/nodes_protocol.hpp"

namespace model::nodes {

// For the names of tests and for messages.
inline void PrintTo(const Scenario& scenario, std::ostream* to) { *to << scenario.name; }

namespace tests {

// The nodes of the ranks.
inline const std::vector<Byte> kOneEach{0, 1};      // rank 0 on the master's node, rank 1 on the other one
inline const std::vector<Byte> kTwoThere{0, 1, 1};  // ranks 1 and 2 on the other node
inline const std::vector<Byte> kTwoEach{0, 0, 1, 1};
inline const std::vector<Byte> kThreeNodes{0, 1, 2};
inline const std::vector<Byte> kThreeOnThree{0, 1, 1, 2};

// Sets of ranks.
inline constexpr Byte kRank0 = 1, kRank1 = 2, kRank2 = 4, kRanks12 = 6;

inline constexpr Call kCall{};
inline constexpr Call kReads{.reads_rows = true};
inline constexpr Call kWritesNoOutbox{.writes_outbox = false};

constexpr Call on(Byte ranks, Call call = kCall) {
  call.ranks = ranks;
  return call;
}
/// The call uses what the earlier calls with these numbers write.
template <class... Ids>
constexpr Call after(Call call, Ids... ids) {
  call.after = static_cast<Byte>((... | (1U << static_cast<unsigned>(ids))));
  return call;
}

template <class... Mishaps>
constexpr Byte any_of(Mishaps... mishaps) {
  return static_cast<Byte>((... | only(mishaps)));
}

class NodesProtocol : public testing::TestWithParam<Scenario> {};

/// A scenario with a mistake. The explorer must find it, and a run that shows it.
struct Broken {
  Scenario scenario;
  const char* wrong;  // a part of the report's text
};
inline void PrintTo(const Broken& broken, std::ostream* to) { *to << broken.scenario.name; }

class BrokenNodesProtocol : public testing::TestWithParam<Broken> {};

inline constexpr const char* kDeadlock = "deadlock";

}  // namespace tests
}  // namespace model::nodes
