// The parts of the simulation of several nodes: the tree, the relays, the network with clocks, and whole calls.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "launcher/nodes/messages.hpp"
#include "syncrun/error.hpp"
#include "tests/launcher/nodes/fake_mailboxes.hpp"
#include "tests/launcher/nodes/simulation/call_simulation.hpp"
#include "tests/launcher/nodes/simulation/node_tree.hpp"
#include "tests/launcher/nodes/simulation/relay.hpp"
#include "tests/launcher/nodes/simulation/timed_network.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace std::chrono_literals;
using testing::ElementsAre;

// ---- the tree

TEST(NodeTrees, ReachEachNodeOnceFromAParentWithALowerNumber) {
  for (int nodes = 1; nodes < 70; ++nodes) {
    for (int fan_out = 1; fan_out < 12; ++fan_out) {
      const NodeTree tree(nodes, fan_out);
      std::vector<int> reached(static_cast<std::size_t>(nodes));
      for (int node = 0; node < nodes; ++node) {
        const auto branches = tree.branches(node);
        ASSERT_LE(branches.size(), static_cast<std::size_t>(fan_out));
        for (const auto& branch : branches) {
          ++reached[static_cast<std::size_t>(branch.child)];
          ASSERT_EQ(tree.parent(branch.child), node);
          ASSERT_GT(branch.child, node);
        }
      }
      ASSERT_EQ(std::count(reached.begin() + 1, reached.end(), 1), nodes - 1);
      ASSERT_EQ(tree.parent(0), -1);
    }
  }
}

TEST(NodeTrees, AreAsFlatAsTheirFanOutAllows) {
  const NodeTree tree(156, 5);  // 1 + 5 + 25 + 125
  int deepest = 0;
  for (int node = 0; node < tree.nodes(); ++node) {
    int depth = 0;
    for (int at = node; at != 0; at = tree.parent(at)) ++depth;
    deepest = std::max(deepest, depth);
  }
  EXPECT_EQ(deepest, 3);
}

// ---- relays

/// The master, and nodes 1 to 6 in two branches of three.
class Relays : public testing::Test {
 protected:
  static MessageWriter command(const std::string& text) {
    MessageWriter message(MessageKind::command);
    message.put_bytes(std::as_bytes(std::span(text)));
    return message;
  }
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static std::vector<std::byte> reports(const std::string& text) {
    MessageWriter message(MessageKind::done);
    message.put_bytes(std::as_bytes(std::span(text)));
    return message.take();
  }
  /// The command that comes to a node next, without its kind.
  std::string next_command(Relay& relay, int node) {
    const auto next = mailboxes.at(node).receive();
    if (!next) return "nothing";
    MessageReader message(next->message, "its parent");
    const auto own = relay.take_command(message);
    return own ? text_of(std::span(own->message).subspan(1)) : "not for this node";
  }
  using Reports = std::pair<std::vector<std::uint64_t>, std::string>;
  /// The commands that are over, and the reports, in the message that comes to a node next.
  Reports next_reports(int node) {
    const auto next = mailboxes.at(node).receive();
    if (!next) return {{}, "nothing"};
    MessageReader message(next->message, "a child");
    EXPECT_EQ(message.kind(), kRelayedReports);
    const auto over = message.get_list<std::uint64_t>();
    return {over, text_of(message.rest())};
  }
  /// Lets the next message of a child of node 1 arrive.
  void pass_reports() {
    const auto next = mailboxes.at(1).receive();
    ASSERT_TRUE(next.has_value());
    MessageReader message(next->message, "a child");
    one.take_reports(message);
  }
  /// The agent of a node reports a command.
  void finish(Relay& relay, std::uint64_t id, const std::string& text) {
    relay.send(0, reports(text));
    relay.finish(id);
  }
  /// Sends a command to nodes 1 to 3, or to some of them.
  void send_to(std::initializer_list<int> nodes, std::uint64_t id) {
    for (const int node : nodes) root.send(node, command("a command").take());
    root.send_command(id);
    next_command(one, 1);
    next_command(two, 2);
    next_command(three, 3);
  }

  const NodeTree tree{7, 2};
  FakeMailboxes mailboxes{7};
  RelayRoot root{mailboxes.at(0), tree};
  Relay one{mailboxes.at(1), tree, 1};  // its children are 2 and 3
  Relay two{mailboxes.at(2), tree, 2};
  Relay three{mailboxes.at(3), tree, 3};
  Clock::time_point now{};
};

TEST_F(Relays, GiveEachNodeItsOwnCommand) {
  for (int node = 1; node < 7; ++node)
    root.send(node, command("the places of node " + std::to_string(node) + ", rows").take());
  root.send_command(1);
  EXPECT_EQ(mailboxes.at(0).sent, 2);
  EXPECT_EQ(next_command(one, 1), "the places of node 1, rows");
  EXPECT_EQ(next_command(two, 2), "the places of node 2, rows");
  EXPECT_EQ(next_command(three, 3), "the places of node 3, rows");
  EXPECT_EQ(mailboxes.at(2).sent, 0);
}

TEST_F(Relays, RepeatOnlyWhatDiffers) {
  const std::string same(1000, 'x');
  for (const char* begin : {"", "a"}) {
    const std::size_t before = mailboxes.at(0).bytes_sent;
    root.send(1, command(same).take());
    root.send(2, command(begin + same).take());
    root.send(3, command(same + "b").take());
    root.send_command(1);
    EXPECT_LT(mailboxes.at(0).bytes_sent - before, 1150U);
    EXPECT_EQ(next_command(one, 1), same);
    EXPECT_EQ(next_command(two, 2), begin + same);
    EXPECT_EQ(next_command(three, 3), same + "b");
  }
}

TEST_F(Relays, PassACommandOnThatIsNotForThem) {
  root.send(3, command("rank 9 alone").take());
  root.send_command(4);
  EXPECT_EQ(mailboxes.at(0).sent, 1);
  EXPECT_EQ(next_command(one, 1), "not for this node");
  EXPECT_EQ(next_command(two, 2), "nothing");
  EXPECT_EQ(next_command(three, 3), "rank 9 alone");
}

TEST_F(Relays, CombineTheReportsOfABranch) {
  send_to({1, 2, 3}, 1);
  finish(two, 1, "two ");
  EXPECT_TRUE(two.report(now));
  pass_reports();
  EXPECT_FALSE(one.report(now)) << "this node and node 3 are not ready";
  finish(one, 1, "one ");
  EXPECT_FALSE(one.report(now)) << "node 3 is not ready";
  finish(three, 1, "three ");
  EXPECT_TRUE(three.report(now));
  pass_reports();
  EXPECT_TRUE(one.report(now));
  EXPECT_EQ(next_reports(0), Reports({1}, "two one three "));
  EXPECT_FALSE(one.report(now)) << "everything is told";
}

TEST_F(Relays, DoNotWaitLongForALateNode) {
  send_to({1, 2, 3}, 1);
  finish(two, 1, "two ");
  two.report(now);
  pass_reports();
  EXPECT_FALSE(one.report(now));
  EXPECT_TRUE(one.report(now + Relay::kLongestHold));
  EXPECT_EQ(next_reports(0), Reports({}, "two ")) << "the command is not over";
}

TEST_F(Relays, ReportACommandAlthoughOthersAreOpen) {
  send_to({2}, 1);
  send_to({2, 3}, 2);
  send_to({2}, 3);
  finish(two, 2, "two ");
  EXPECT_TRUE(two.report(now));
  pass_reports();
  EXPECT_FALSE(one.report(now));
  finish(three, 2, "three ");
  EXPECT_TRUE(three.report(now));
  pass_reports();
  EXPECT_TRUE(one.report(now));
  EXPECT_EQ(next_reports(0), Reports({2}, "two three "));
}

TEST_F(Relays, SendOtherMessagesDirectly) {
  root.send(3, MessageWriter(MessageKind::spoil).take());
  EXPECT_EQ(static_cast<MessageKind>(mailboxes.at(3).receive()->message.front()), MessageKind::spoil);
  three.send(0, MessageWriter(MessageKind::progress).take());
  EXPECT_EQ(static_cast<MessageKind>(mailboxes.at(0).receive()->message.front()), MessageKind::progress);
}

TEST_F(Relays, RefuseReportsOfUnknownCommands) {
  send_to({2}, 1);
  EXPECT_THROW(two.finish(2), Error);
}

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
