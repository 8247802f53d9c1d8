#pragma once

// The parts of scenarios, and the two tests that explore them.

#include <gtest/gtest.h>

#include "tests/model/explorer.hpp"
#include "tests/model/protocol.hpp"

namespace model {

// For the names of tests and for messages.
inline void PrintTo(const Scenario& scenario, std::ostream* to) { *to << scenario.name; }

namespace tests {

inline constexpr Call kPlain{};                                               // the master reduces its outputs
inline constexpr Call kSilent{.has_outputs = false};                          // has no outputs
inline constexpr Call kUpdates{.wants_vote = true};                           // commits if all ranks vote for it
inline constexpr Call kLarge{.is_large = true};                               // the workers reduce its outputs
inline constexpr Call kMeets{.operations = 1, .has_outputs = false};          // one collective
inline constexpr Call kMeetsTwice{.operations = 2, .has_outputs = false};     // two collectives
inline constexpr Call kMeetsAndUpdates{.operations = 1, .wants_vote = true};  // a collective and an update

inline constexpr Call kUsesShares{.has_outputs = false, .uses_shares = true};  // of a shared variable

// Sets of ranks.
inline constexpr Byte kRank0 = 1, kRank1 = 2, kRank2 = 4, kRanks01 = 3, kRanks12 = 6, kRanks02 = 5;

constexpr Call on(Byte ranks, Call call) {
  call.ranks = ranks;
  return call;
}
/// The call uses what the earlier calls with these numbers write.
template <class... Ids>
constexpr Call after(Call call, Ids... ids) {
  call.after = static_cast<Byte>((... | (1U << static_cast<unsigned>(ids))));
  return call;
}

// Values: a bit per value. These calls have no outputs besides.
inline constexpr Byte kA = 1, kB = 2;
constexpr Call reads(Byte values, Byte ranks) { return {.has_outputs = false, .ranks = ranks, .reads = values}; }
constexpr Call writes(Byte values, Byte ranks) { return {.has_outputs = false, .ranks = ranks, .writes = values}; }
constexpr Call to_host(Byte value) { return {.has_outputs = false, .to_host = value}; }
constexpr Call to_rank(Byte value, Byte rank) {
  return {.has_outputs = false, .ranks = rank, .reads = value, .only_brings = true};
}
constexpr Call makes(Byte values, Byte ranks) { return {.has_outputs = false, .ranks = ranks, .makes = values}; }

/// Explores the scenario, and prints how many states it has.
Report explore(const Scenario& scenario);

class Protocol : public testing::TestWithParam<Scenario> {};

/// A scenario with a mistake. The explorer must find it, and a run that shows it.
struct Broken {
  Scenario scenario;
  const char* wrong;  // a part of the report's text
};
inline void PrintTo(const Broken& broken, std::ostream* to) { *to << broken.scenario.name; }

class BrokenProtocol : public testing::TestWithParam<Broken> {};

inline constexpr const char* kDeadlock = "deadlock";

}  // namespace tests
}  // namespace model
