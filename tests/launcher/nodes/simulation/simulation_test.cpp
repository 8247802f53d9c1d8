// The parts of the simulation of several nodes: the network with clocks, and whole calls.

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "tests/launcher/nodes/simulation/call_simulation.hpp"
#include "tests/launcher/nodes/simulation/timed_network.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace std::chrono_literals;
using testing::ElementsAre;

// ---- the network with clocks

TEST(TimedNetworks, ChargeBothSidesAndTheWay) {
  TimedNetwork network(3, {.overhead = 10ns, .latency = 100ns, .bytes_per_ns = 1});
  std::vector<std::pair<int, TimedNetwork::Time>> arrivals;
  network.at(0).send(1, std::vector<std::byte>(1));
  network.at(0).send(2, std::vector<std::byte>(5));
  EXPECT_EQ(network.now(0), 26ns);
  network.run([&](int node, const Mailbox::Received&) { arrivals.emplace_back(node, network.now(node)); });
  EXPECT_THAT(arrivals, ElementsAre(std::pair(1, 11ns + 100ns + 11ns), std::pair(2, 26ns + 100ns + 15ns)));
}

TEST(TimedNetworks, LetANodeDoOneThingAtATime) {
  TimedNetwork network(3, {.overhead = 10ns, .latency = 100ns, .bytes_per_ns = 1e9});
  std::vector<TimedNetwork::Time> times;
  network.after(2, 115ns, [&] { times.push_back(network.now(2)); });
  for (int node = 0; node < 2; ++node) network.at(node).send(2, std::vector<std::byte>(8));
  network.run([&](int, const Mailbox::Received&) { times.push_back(network.now(2)); });
  EXPECT_THAT(times, ElementsAre(120ns, 130ns, 130ns));
}

// ---- whole calls

SimulatedSession session_of(int nodes) {
  return {.nodes = nodes,
          .ranks_of_each = 2,
          .fan_out = std::nullopt,
          .network = {.overhead = 400ns, .latency = 2000ns, .bytes_per_ns = 1e9},
          .here = 2500ns,
          .workers = 500ns};
}

TEST(SimulatedCalls, TakeFourOverheadsAndTwoWaysOverTwoNodes) {
  EXPECT_EQ(simulate_empty_calls(session_of(2), 3).time, 2500ns + 4 * 400ns + 2 * 2000ns + 500ns);
}

TEST(SimulatedCalls, SendToEachNodeInAStarAndToEachChildInATree) {
  SimulatedSession session = session_of(20);
  EXPECT_EQ(simulate_empty_calls(session, 2).messages_sent, 19U);
  session.fan_out = 4;
  EXPECT_EQ(simulate_empty_calls(session, 2).messages_sent, 4U);
}

TEST(SimulatedCalls, TakeAsLongTheNextTime) {
  SimulatedSession session = session_of(20);
  session.fan_out = 3;
  EXPECT_EQ(simulate_empty_calls(session, 2).time, simulate_empty_calls(session, 40).time);
}

}  // namespace
}  // namespace syncrun::test
