// The nodes of a job with a tree among each other, without processes: the way of messages, lost relays and lost links.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/nodes/node_group.hpp"
#include "tests/launcher/nodes/borrowed_transport.hpp"
#include "tests/launcher/nodes/fake_transport.hpp"
#include "tests/launcher/nodes/notes.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

/// A master and six agents. Nodes 1 and 4 are relays: 2 and 3 are below node 1, and 5 and 6 below node 4. A node is lost
/// after three tenths of a second.
class GroupWithATree : public testing::Test {
 protected:
  static constexpr NodeGroup::Limits kLimits{.silence = Milliseconds(300), .beat = Milliseconds(2)};
  static constexpr int kNodes = 7;

  GroupWithATree() {
    for (int node = 0; node < kNodes; ++node) network.at(node).open();
    for (int node = 0; node < kNodes; ++node) {
      groups.push_back(std::make_unique<NodeGroup>(std::make_unique<BorrowedTransport>(network.at(node)), kLimits));
      groups.back()->use_tree(3);
      groups.back()->listen(&note(node));
    }
  }
  ~GroupWithATree() override {
    for (const auto& group : groups) group->listen(nullptr);
  }
  Notes& note(int node) { return notes[static_cast<std::size_t>(node)]; }
  NodeGroup& group(int node) { return *groups[static_cast<std::size_t>(node)]; }
  NodeGroup& master() { return group(0); }
  static MessageWriter number(MessageKind kind, int value) {
    MessageWriter message(kind);
    message.put(value);
    return message;
  }
  /// Lets messages pass until `holds()`.
  template <class Holds>
  bool until(Holds&& holds) {
    const auto end = Clock::now() + Milliseconds(5000);
    while (!holds()) {
      if (Clock::now() > end) return false;
      for (const auto& each : groups) each->progress();
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return true;
  }
  /// Lets messages pass for so long.
  void pass(Milliseconds time) {
    const auto end = Clock::now() + time;
    static_cast<void>(until([&] { return Clock::now() > end; }));
  }

  FakeNetwork network{kNodes};
  std::array<Notes, kNodes> notes;
  std::vector<std::unique_ptr<NodeGroup>> groups;
};

TEST_F(GroupWithATree, SendsWhatBelongsToASessionAlongTheTree) {
  network.hold_back(0, 2);
  network.hold_back(2, 0);
  for (int i = 0; i < 50; ++i) {
    master().send(2, number(MessageKind::spoil, i));
    group(2).send(0, number(MessageKind::progress, i));
  }
  ASSERT_TRUE(until([&] { return note(2).messages().size() == 50 && note(0).messages().size() == 50; }));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(note(2).messages()[static_cast<std::size_t>(i)], std::pair(0, i));
    EXPECT_EQ(note(0).messages()[static_cast<std::size_t>(i)], std::pair(2, i));
  }
}

TEST_F(GroupWithATree, SendsOtherMessagesDirectly) {
  network.hold_back(0, 1);
  network.hold_back(1, 0);
  master().send(2, number(MessageKind::open, 1));
  group(2).send(0, number(MessageKind::devices, 2));
  group(2).send(5, number(MessageKind::vote, 3));
  group(2).send_directly(0, number(MessageKind::start_failed, 4));
  ASSERT_TRUE(until([&] { return note(0).messages().size() == 2 && note(5).messages().size() == 1; }));
  EXPECT_THAT(note(2).messages(), ElementsAre(std::pair(0, 1)));
  EXPECT_THAT(note(0).messages_of(2), ElementsAre(2, 4));
  EXPECT_THAT(note(5).messages(), ElementsAre(std::pair(2, 3)));
  network.release(0, 1);
  network.release(1, 0);
}

TEST_F(GroupWithATree, SendsOneMessageToAllNodesOfABranch) {
  master().send_to_all(number(MessageKind::end, 7));
  ASSERT_TRUE(until([&] {
    return std::all_of(notes.begin() + 1, notes.end(), [](const Notes& one) { return one.messages().size() == 1; });
  }));
  for (int node = 1; node < kNodes; ++node) EXPECT_THAT(note(node).messages(), ElementsAre(std::pair(0, 7)));
}

TEST_F(GroupWithATree, WaitsForARelayThatIsLate) {
  network.stop(1);
  master().send(2, number(MessageKind::spoil, 1));
  group(2).send(0, number(MessageKind::progress, 2));
  pass(kLimits.silence / 3);
  EXPECT_TRUE(note(2).messages().empty());
  network.resume(1);
  ASSERT_TRUE(until([&] { return note(2).messages().size() == 1 && note(0).messages().size() == 1; }));
  EXPECT_EQ(note(0).losses(), 0U);
}

/// The first argument of a test says how a relay is lost.
class LostRelays : public GroupWithATree, public testing::WithParamInterface<bool> {
 protected:
  void lose_relay() { GetParam() ? network.kill(1) : network.stop(1); }
};

TEST_P(LostRelays, AreNamedAndMessagesGoDirectlyAfterwards) {
  master().set_names({"a", "b", "c", "d", "e", "f", "g"});
  master().send(2, number(MessageKind::spoil, 1));
  ASSERT_TRUE(until([&] { return note(2).messages().size() == 1; }));
  const auto begin = Clock::now();
  lose_relay();
  master().send(2, number(MessageKind::spoil, 2));
  group(2).send(0, number(MessageKind::progress, 2));
  ASSERT_TRUE(until([&] { return !note(0).loss_of(1).empty(); }));
  EXPECT_LT(Clock::now() - begin, 10 * kLimits.silence);
  EXPECT_THAT(note(0).loss_of(1), HasSubstr("node 1 (b) is silent for 0.3 s"));
  EXPECT_TRUE(master().has_broken_tree());
  master().send_to_all(number(MessageKind::end, 3));
  for (const int node : {2, 3, 4, 5, 6}) {
    ASSERT_TRUE(
        until([&] { return !note(node).messages().empty() && note(node).messages().back() == std::pair(0, 3); }));
    group(node).send(0, number(MessageKind::ended, 4));
    ASSERT_TRUE(until([&] { return note(0).messages_of(node) == std::vector<int>{4}; })) << "node " << node;
  }
  pass(Milliseconds(1600));
  EXPECT_EQ(note(0).losses(), 1U) << "no other node is blamed";
  for (const int node : {2, 3, 4, 5, 6}) EXPECT_FALSE(group(node).broken_link().has_value()) << "node " << node;
}

INSTANTIATE_TEST_SUITE_P(Of, LostRelays, testing::Bool(),
                         [](const auto& test) { return test.param ? "KilledNodes" : "StoppedNodes"; });

TEST_F(GroupWithATree, HearsWhatARelayHasCollectedWhenAnotherNodeIsLost) {
  Bundle bundle(1);
  const auto piece = bundle.add_piece(number(MessageKind::spoil, 1).take());
  for (const int node : {4, 5, 6}) bundle.add(node, {&piece, 1});
  master().root()->send(bundle);
  ASSERT_TRUE(until([&] { return note(5).messages().size() == 1; }));
  group(5).relay()->report(number(MessageKind::done, 5).take(), {}, Relay::Urgency::may_wait);
  master().lose(1, Error(ErrorKind::worker_lost, "it is gone"));
  ASSERT_TRUE(until([&] { return note(0).messages_of(5) == std::vector<int>{5}; }));
}

TEST_F(GroupWithATree, BlamesTheSenderOfAMessageThatCannotBeHandled) {
  group(3).send(0, number(MessageKind::rank_lost, 1));
  ASSERT_TRUE(until([&] { return note(0).losses() != 0; }));
  EXPECT_EQ(note(0).loss_of(3), "cannot be read");
  EXPECT_EQ(note(0).loss_of(1), "");
}

TEST_F(GroupWithATree, IgnoresWhatALostNodeSendsThroughARelay) {
  network.hold_back(1, 0);
  group(3).send(0, number(MessageKind::progress, 1));
  pass(Milliseconds(5));
  master().lose(3, Error(ErrorKind::worker_lost, "it is gone"));
  network.release(1, 0);
  group(2).send(0, number(MessageKind::progress, 2));
  ASSERT_TRUE(until([&] { return note(0).messages_of(2) == std::vector<int>{2}; }));
  EXPECT_TRUE(note(0).messages_of(3).empty());
}

TEST_F(GroupWithATree, NoticesThatOnlyALinkWithinTheTreeIsDown) {
  group(2).set_names({"a", "b", "c", "d", "e", "f", "g"});
  const auto begin = Clock::now();
  network.lose(1, 2);
  ASSERT_TRUE(until([&] { return group(2).broken_link().has_value(); }));
  EXPECT_LT(Clock::now() - begin, Milliseconds(3000));
  EXPECT_THAT(group(2).broken_link()->what(), HasSubstr("nothing is heard from node 1 (b), its neighbour in the tree"));
  EXPECT_EQ(note(0).losses(), 0U) << "the master hears from both";
}

TEST_F(GroupWithATree, KeepsALinkOnWhichSignsOfLifeWaitBehindSomethingLarge) {
  network.hold_back(1, 2);
  for (const auto end = Clock::now() + Milliseconds(2000); Clock::now() < end;) {
    network.pass_piece(1, 2);
    pass(Milliseconds(20));
  }
  EXPECT_FALSE(group(2).broken_link().has_value());
  EXPECT_TRUE(until([&] { return group(2).broken_link().has_value(); })) << "no piece arrives any more";
}

TEST(Trees, AreMadeOnlyInJobsOfEnoughNodes) {
  FakeNetwork network(3);
  for (int node = 0; node < 3; ++node) network.at(node).open();
  NodeGroup group(std::make_unique<BorrowedTransport>(network.at(0)), {});
  group.use_tree(4);
  EXPECT_EQ(group.tree_from(), 0);
  EXPECT_EQ(group.root(), nullptr);
  group.use_tree(3);
  EXPECT_EQ(group.tree_from(), 3);
  EXPECT_NE(group.root(), nullptr);
}

}  // namespace
}  // namespace syncrun::test
