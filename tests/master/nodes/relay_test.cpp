// The tree of nodes, and what relays do with the messages that travel along it.

#include "master/nodes/relay.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/error.hpp"
#include "tests/master/nodes/fake_transport.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

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

int depth_of(const NodeTree& tree) {
  int deepest = 0;
  for (int node = 0; node < tree.nodes(); ++node) {
    int depth = 0;
    for (int at = node; at != 0; at = tree.parent(at)) ++depth;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

TEST(NodeTrees, AreAsFlatAsTheirFanOutAllows) {
  EXPECT_EQ(depth_of(NodeTree(156, 5)), 3);  // 1 + 5 + 25 + 125
}

TEST(NodeTrees, HaveTwoLevelsWithTheUsualFanOutAndOneMoreWhereItIsRoundedDown) {
  for (const int nodes : {16, 32, 64, 128, 1000})
    EXPECT_LE(depth_of(NodeTree(nodes, NodeTree::usual_fan_out(nodes))), 3);
  EXPECT_EQ(depth_of(NodeTree(16, NodeTree::usual_fan_out(16))), 2);
  EXPECT_EQ(depth_of(NodeTree(3, NodeTree::usual_fan_out(3))), 2) << "a forced tree of three nodes has a relay";
}

// ---- bundles

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string words_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string message_in(const Bundle& bundle, int node) {
  const auto message = bundle.message_of(node);
  return message ? words_in(*message) : "nothing";
}

TEST(Bundles, TravelInPartsThatHaveOnlyWhatABranchNeeds) {
  Bundle bundle(7, 2);
  const std::string large(1000, 'x');
  const auto same = bundle.add_piece(bytes_of("same "));
  for (const int node : {1, 2, 5})
    bundle.add(node, std::array{same, bundle.add_piece(bytes_of(std::to_string(node) + large))});
  const auto part = bundle.part_of({2, 4});
  ASSERT_TRUE(part.has_value());
  EXPECT_LT(part->size(), 1150U);
  MessageReader message(*part, "the parent");
  EXPECT_EQ(message.kind(), MessageKind::bundle);
  const Bundle arrived(message);
  EXPECT_EQ(arrived.command(), 7U);
  EXPECT_THAT(arrived.nodes(), ElementsAre(2));
  EXPECT_EQ(message_in(arrived, 2), "same 2" + large);
  EXPECT_FALSE(bundle.part_of({3, 5}).has_value());
}

TEST(Bundles, KeepAPieceThatComesAgainOnce) {
  Bundle bundle;
  const auto first = bundle.add_piece(bytes_of("a"));
  EXPECT_EQ(bundle.add_piece_unless(first, bytes_of("a")), first);
  EXPECT_NE(bundle.add_piece_unless(first, bytes_of("b")), first);
  EXPECT_NE(bundle.add_piece_unless(first, bytes_of("ab")), first);
  EXPECT_NE(bundle.add_piece_unless(std::nullopt, bytes_of("a")), first);
}

TEST(Bundles, ThatCannotBeReadAreRefused) {
  const Bundle::Piece unknown = 3;
  MessageWriter writer(MessageKind::bundle);
  writer.put(std::uint64_t{1});
  writer.put(std::uint8_t{1});
  writer.put_list(std::span<const std::uint64_t>());
  writer.put_list(std::span<const int>(std::array{1}));
  writer.put(unknown);
  const auto bytes = writer.take();
  MessageReader message(bytes, "the parent");
  EXPECT_THROW(Bundle{message}, Error);
}

// ---- relays

/// The master, and nodes 1 to 6 in two branches of three.
class Relays : public testing::Test {
 protected:
  static std::vector<std::byte> done(const std::string& text) {
    MessageWriter message(MessageKind::done);
    message.put_bytes(std::as_bytes(std::span(text)));
    return message.take();
  }
  /// The master's message that comes to a node next, without its kind.
  std::string next_of_master(Relay& relay, int node) {
    const auto next = network.at(node).receive();
    if (!next) return "nothing";
    MessageReader message(next->message, "its parent");
    const auto own = relay.take_bundle(message);
    return own ? words_in(std::span(*own).subspan(1)) : "not for this node";
  }
  /// The commands that are over, and the messages with their nodes, in what comes to a node next.
  struct Arrived {
    bool is_urgent = false;
    std::vector<std::uint64_t> over;
    std::vector<std::pair<int, std::string>> messages;
  };
  Arrived next_reports(int node) {
    const auto next = network.at(node).receive();
    if (!next) return {};
    Arrived arrived;
    MessageReader header(next->message, "a child");
    EXPECT_EQ(header.kind(), MessageKind::reports);
    arrived.is_urgent = header.get<bool>();
    arrived.over = header.get_list<std::uint64_t>();
    MessageReader message(next->message, "a child");
    for_each_report(message, [&](int from, std::span<const std::byte> bytes) {
      arrived.messages.emplace_back(from, words_in(bytes.subspan(1)));
    });
    return arrived;
  }
  /// Lets the next message of a child of node 1 arrive.
  void pass_reports() {
    const auto next = network.at(1).receive();
    ASSERT_TRUE(next.has_value());
    MessageReader message(next->message, "a child");
    one.take_reports(message);
  }
  /// The agent of a node reports a command for all ranks of the node.
  static void finish(Relay& relay, std::uint64_t id, const std::string& text) {
    relay.report(done(text), std::array{id}, Relay::Urgency::may_wait);
  }
  /// Sends a command to nodes of the first branch.
  void send_to(std::initializer_list<int> nodes, std::uint64_t id) {
    Bundle bundle(id);
    const auto piece = bundle.add_piece(done("a command"));
    for (const int node : nodes) bundle.add(node, {&piece, 1});
    root.send(bundle);
    next_of_master(one, 1);
    next_of_master(two, 2);
    next_of_master(three, 3);
  }

  const NodeTree tree{7, 2};
  FakeNetwork network{7};
  RelayRoot root{network.at(0), tree};
  Relay one{network.at(1), tree, 1};  // its children are 2 and 3
  Relay two{network.at(2), tree, 2};
  Relay three{network.at(3), tree, 3};
  os::Clock::time_point now{};
};

TEST_F(Relays, DoNotWaitLongForALateNode) {
  send_to({1, 2, 3}, 1);
  finish(two, 1, "two");
  pass_reports();
  EXPECT_FALSE(one.look(now));
  EXPECT_FALSE(one.look(now + Relay::kLongestHold / 2));
  EXPECT_TRUE(one.look(now + Relay::kLongestHold));
  const Arrived arrived = next_reports(0);
  EXPECT_THAT(arrived.over, IsEmpty()) << "the command is not over";
  EXPECT_THAT(arrived.messages, ElementsAre(Pair(2, "two")));
}

TEST_F(Relays, WaitOnlyForTheNodesOfTheCommand) {
  send_to({1, 2, 3}, 1);
  send_to({2, 3}, 2);
  send_to({2}, 3);
  finish(two, 3, "two");
  pass_reports();
  EXPECT_THAT(next_reports(0).over, ElementsAre(3));
  finish(two, 2, "two");
  pass_reports();
  EXPECT_THAT(next_reports(0).messages, IsEmpty());
  finish(three, 2, "three");
  pass_reports();
  EXPECT_THAT(next_reports(0).over, ElementsAre(2));
}

TEST_F(Relays, TellOfAFailureAtOnceOnTheWholeWay) {
  send_to({1, 2, 3}, 1);
  two.report(done("it failed"), {}, Relay::Urgency::at_once);
  pass_reports();
  const Arrived arrived = next_reports(0);
  EXPECT_TRUE(arrived.is_urgent);
  EXPECT_THAT(arrived.messages, ElementsAre(Pair(2, "it failed")));
}

TEST_F(Relays, DoNotCollectLargeReports) {
  send_to({1, 2, 3}, 1);
  finish(one, 1, std::string(Relay::kMostHeld, 'x'));
  EXPECT_EQ(next_reports(0).messages.size(), 1U);
}

TEST_F(Relays, ForgetCommandsThatWereGivenUp) {
  send_to({1, 2}, 1);
  send_to({1}, 2);
  one.forget(1);
  finish(one, 1, "late");
  EXPECT_EQ(network.messages_sent(1), 1U) << "no longer known, so it is not over";
  finish(one, 2, "in time");
  const Arrived arrived = next_reports(0);
  EXPECT_THAT(arrived.over, ElementsAre(2));
  EXPECT_THAT(arrived.messages, ElementsAre(Pair(1, "late"), Pair(1, "in time")));
}

TEST_F(Relays, CountTheCommandsOfEachSessionAnew) {
  send_to({1, 2, 3}, 1);  // the session ends before they are done
  one.begin_session();
  send_to({1}, 1);
  finish(one, 1, "one");
  EXPECT_THAT(next_reports(0).over, ElementsAre(1));
}

TEST_F(Relays, SendEverythingDirectlyOnceTheTreeHasEnded) {
  send_to({1, 2, 3}, 1);
  finish(two, 1, "two");
  pass_reports();
  EXPECT_TRUE(root.end_tree());
  EXPECT_FALSE(root.end_tree()) << "it had ended";
  one.end_tree();
  EXPECT_THAT(next_reports(0).messages, ElementsAre(Pair(2, "two"))) << "nothing waits any more";
  three.end_tree();
  three.send(done("three"));
  EXPECT_THAT(next_reports(0).messages, ElementsAre(Pair(3, "three")));
  root.send(3, done("for node 3"));
  const auto next = network.at(3).receive();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->node, 0);
  EXPECT_EQ(words_in(next->message).substr(1), "for node 3");
}

TEST_F(Relays, PassOnWhatComesFromChildrenThatHaveNotHeardOfTheEnd) {
  send_to({1, 2, 3}, 1);
  one.end_tree();
  two.send(done("two"));
  pass_reports();
  EXPECT_THAT(next_reports(0).messages, ElementsAre(Pair(2, "two")));
}

}  // namespace
}  // namespace syncrun::test
