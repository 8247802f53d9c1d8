// The nodes of a job with a tree among each other, without processes: the way of messages, lost relays and lost links.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "master/nodes/node_group.hpp"
#include "tests/master/nodes/groups.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::ElementsAre;

/// A master and six agents. Nodes 1 and 4 are relays: 2 and 3 are below node 1, and 5 and 6 below node 4.
class GroupWithATree : public Groups {
 protected:
  static constexpr int kNodes = 7;

  explicit GroupWithATree(const Limits& limits = {.silence = Milliseconds(60'000), .beat = Milliseconds(2)})
      : Groups(kNodes, limits) {
    for (int node = 0; node < kNodes; ++node) {
      join(node).use_tree(3);
      groups.back().listen(&note(node));
    }
  }
  ~GroupWithATree() override {
    for (auto& group : groups) group.listen(nullptr);
  }
  Notes& note(int node) { return notes[static_cast<std::size_t>(node)]; }
  NodeGroup& group(int node) { return groups[static_cast<std::size_t>(node)]; }
  NodeGroup& master() { return group(0); }
  /// Lets messages pass for so long.
  void pass(Milliseconds time) {
    const auto end = Clock::now() + time;
    static_cast<void>(until([&] { return Clock::now() > end; }));
  }

  std::array<Notes, kNodes> notes;
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

TEST_F(GroupWithATree, HearsWhatARelayHasCollectedWhenAnotherNodeIsLost) {
  Bundle bundle(1);
  const auto piece = bundle.add_piece(number(MessageKind::spoil, 1).take());
  for (const int node : {4, 5, 6}) bundle.add(node, {&piece, 1});
  master().tree().root()->send(bundle);
  ASSERT_TRUE(until([&] { return note(5).messages().size() == 1; }));
  group(5).tree().relay()->report(number(MessageKind::done, 5).take(), {}, Relay::Urgency::may_wait);
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

/// A node is lost after three tenths of a second.
class WatchedTree : public GroupWithATree {
 protected:
  WatchedTree() : GroupWithATree({.silence = Milliseconds(300), .beat = Milliseconds(2)}) {}
};

TEST_F(WatchedTree, NoticesThatTheLinkToANeighbourIsBroken) {
  network.hold_back(1, 2);
  EXPECT_TRUE(until([&] { return group(2).broken_link().has_value(); }));
}

class Trees : public Groups {
 protected:
  Trees() : Groups(3) {}
};

TEST_F(Trees, AreMadeOnlyInJobsOfEnoughNodes) {
  NodeGroup& group = join(0);
  group.use_tree(4);
  EXPECT_EQ(group.tree().from(), 0);
  EXPECT_EQ(group.tree().root(), nullptr);
  group.use_tree(3);
  EXPECT_EQ(group.tree().from(), 3);
  EXPECT_NE(group.tree().root(), nullptr);
}

}  // namespace
}  // namespace syncrun::test
