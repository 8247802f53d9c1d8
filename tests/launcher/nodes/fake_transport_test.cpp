// What a test can do to the nodes and links of the fake transport.

#include "tests/launcher/nodes/fake_transport.hpp"

#include <gmock/gmock.h>

namespace syncrun::test {
namespace {

using detail::Milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::byte> text(const std::string& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

/// Everything that a node has received: "sender: words".
std::vector<std::string> received(FakeNetwork& network, int node) {
  std::vector<std::string> all;
  while (const auto arrival = network.at(node).receive()) {
    const auto* const words = reinterpret_cast<const char*>(arrival->message.data());
    all.push_back(std::to_string(arrival->node) + ": " + std::string(words, arrival->message.size()));
  }
  return all;
}

TEST(FakeNetwork, DeliversAtOnce) {
  FakeNetwork network(3);
  network.at(1).send(0, text("a"));
  network.at(2).send(0, text("b"));
  network.at(1).send(0, text("c"));
  EXPECT_THAT(received(network, 0), ElementsAre("1: a", "2: b", "1: c"));
  EXPECT_EQ(network.messages_sent(1), 2U);
  EXPECT_EQ(network.bytes_sent(1), 2U);
}

TEST(FakeNetwork, HoldsBackOneDirectionOfALink) {
  FakeNetwork network(2);
  network.hold_back(1, 0);
  network.at(1).send(0, text("a"));
  network.at(0).send(1, text("b"));
  EXPECT_THAT(received(network, 0), IsEmpty());
  EXPECT_THAT(received(network, 1), ElementsAre("0: b"));
  network.at(1).send(0, text("c"));
  network.release(1, 0);
  EXPECT_THAT(received(network, 0), ElementsAre("1: a", "1: c"));
}

TEST(FakeNetwork, LosesALinkSilently) {
  FakeNetwork network(3);
  const auto bulk = text("bulk");
  std::vector<std::byte> memory(bulk.size());
  network.at(1).send(0, text("under way"));
  const auto out = network.at(1).send_bulk(0, bulk);
  const auto in = network.at(0).receive_bulk(1, memory);
  network.lose(0, 1);
  network.at(1).send(0, text("later"));
  network.at(0).send(1, text("later"));
  network.at(2).send(0, text("another link"));
  EXPECT_THAT(received(network, 0), ElementsAre("2: another link"));
  EXPECT_THAT(received(network, 1), IsEmpty());
  EXPECT_FALSE(network.at(1).is_over(out));
  EXPECT_FALSE(network.at(0).is_over(in));
  network.at(0).abandon(1);
  EXPECT_TRUE(network.at(0).is_over(in));
}

TEST(FakeNetwork, StopsANodeUntilItGoesOn) {
  FakeNetwork network(2);
  const auto bulk = text("bulk");
  std::vector<std::byte> memory(bulk.size());
  network.at(1).send(0, text("before"));
  network.stop(1);
  network.at(1).send(0, text("meanwhile"));
  network.at(0).send(1, text("to it"));
  network.at(0).receive_bulk(1, memory);
  const auto ticket = network.at(1).send_bulk(0, bulk);
  EXPECT_THAT(received(network, 0), ElementsAre("1: before"));
  EXPECT_THAT(received(network, 1), IsEmpty());
  EXPECT_FALSE(network.at(1).is_over(ticket));
  network.resume(1);
  EXPECT_THAT(received(network, 0), ElementsAre("1: meanwhile"));
  EXPECT_THAT(received(network, 1), ElementsAre("0: to it"));
  EXPECT_TRUE(network.at(1).is_over(ticket));
  EXPECT_EQ(memory, bulk);
}

TEST(FakeNetwork, KillsANode) {
  FakeNetwork network(2);
  network.at(1).send(0, text("before"));
  network.kill(1);
  network.at(1).send(0, text("after"));
  network.at(0).send(1, text("to it"));
  network.resume(1);
  EXPECT_THAT(received(network, 0), ElementsAre("1: before"));
  EXPECT_THAT(received(network, 1), IsEmpty());
  EXPECT_FALSE(network.at(1).close(Milliseconds(1000)));
  EXPECT_FALSE(network.at(0).close(Milliseconds(10)));
}

}  // namespace
}  // namespace syncrun::test
