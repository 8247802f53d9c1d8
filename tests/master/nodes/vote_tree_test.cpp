// The votes of commands on many nodes. The test votes in the control blocks in place of the ranks, and decides when
// messages arrive.

#include "master/nodes/vote_tree.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "master/nodes/node_exchange.hpp"
#include "syncrun/error.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;

constexpr int kNodes = 20;

TEST(VoteTrees, RefuseVotesThatTheyDoNotExpect) {
  VoteTree tree({0, 1, 2, 3}, 1);
  EXPECT_EQ(tree.parent(), 0);
  EXPECT_THROW(tree.note(3, protocol::Vote::ok), Error);
  tree.note(1, protocol::Vote::ok);
  EXPECT_THROW(tree.note(1, protocol::Vote::ok), Error);
}

/// A node with one rank, which has its number.
struct Voter : NodeOfTest {
  Voter(FakeNetwork& network, int number, int tree_from)
      : NodeOfTest(network, number, kNodes, 1),
        node(number),
        exchange(mailbox, pool.control(), pool.segment(), 1, tree_from) {}
  void add(std::uint64_t id, const protocol::RankSet& ranks) {
    put_call(id, ranks).wants_vote = true;
    exchange.add(id);
  }
  void vote(std::uint64_t id, protocol::Vote vote) {
    pool.control().outbox(pool.control().command_in(id), node).cast = vote;
    pool.control().worker(node).vote.store(protocol::vote_word(id, vote));
  }
  /// Empty if the rank still has to wait.
  protocol::Vote others(std::uint64_t id) {
    const std::uint64_t word = pool.control().command_in(id).vote_of_others.load();
    if (word == protocol::vote_word(id, protocol::Vote::ok)) return protocol::Vote::ok;
    return word == protocol::vote_word(id, protocol::Vote::failed) ? protocol::Vote::failed : protocol::Vote::none;
  }
  void run() { NodeOfTest::run(exchange); }

  int node;
  NodeExchange exchange;
};

class VotesOfNodes : public testing::TestWithParam<int> {
 protected:
  void make(int tree_from) {
    for (int node = 0; node < kNodes; ++node) voters.emplace_back(network, node, tree_from);
  }
  /// Some ranks vote, and get the result within so many rounds. Returns how many messages that took.
  std::size_t messages_of_a_vote(int rounds) {
    const protocol::RankSet ranks = some_ranks(GetParam());
    for (const int node : ranks) voters[static_cast<std::size_t>(node)].add(1, ranks);
    for (const int node : ranks) voters[static_cast<std::size_t>(node)].vote(1, protocol::Vote::ok);
    for (int round = 0; round < rounds; ++round) {
      for (Voter& voter : voters) voter.run();
    }
    for (const int node : ranks) EXPECT_EQ(voters[static_cast<std::size_t>(node)].others(1), protocol::Vote::ok);
    std::size_t sent = 0;
    for (int node = 0; node < kNodes; ++node) sent += network.messages_sent(node);
    return sent;
  }
  /// So many nodes that follow each other.
  protocol::RankSet some_ranks(int count) {
    const int first = static_cast<int>(random() % static_cast<unsigned>(kNodes - count + 1));
    protocol::RankSet ranks;
    for (int rank = first; rank < first + count; ++rank) ranks.add(rank);
    return ranks;
  }
  /// Holds back some links, and lets others pass.
  void shake() {
    for (int i = 0; i < 30; ++i) {
      const int from = static_cast<int>(random() % kNodes);
      const int to = static_cast<int>(random() % kNodes);
      if (random() % 2 == 0) network.hold_back(from, to);
      else network.release(from, to);
    }
  }
  void release_all() {
    for (int from = 0; from < kNodes; ++from) {
      for (int to = 0; to < kNodes; ++to) network.release(from, to);
    }
  }

  std::mt19937 random{static_cast<unsigned>(GetParam())};
  FakeNetwork network{kNodes};
  std::deque<Voter> voters;
};

TEST_P(VotesOfNodes, ReachEachNodeWithTwoMessagesForEachOtherNode) {
  make(2);
  EXPECT_EQ(messages_of_a_vote(8), 2U * static_cast<std::size_t>(GetParam() - 1));
}

TEST_P(VotesOfNodes, OfFewerNodesThanATreeHasGoToEachOtherNode) {
  make(GetParam() + 1);
  EXPECT_EQ(messages_of_a_vote(3), static_cast<std::size_t>(GetParam()) * static_cast<std::size_t>(GetParam() - 1));
}

/// Commands come to the nodes at different times. Some ranks fail, and some skip the command: these are done with it as
/// soon as they have voted.
TEST_P(VotesOfNodes, HaveTheSameResultOnAllNodesInAnyOrder) {
  make(2);
  for (std::uint64_t id = 1; id <= 20; ++id) {
    const protocol::RankSet ranks = some_ranks(GetParam());
    const bool all_ok = random() % 2 == 0;
    const int bad = ranks.first() + static_cast<int>(random() % static_cast<unsigned>(GetParam()));
    const bool skips = random() % 2 == 0;
    std::vector<int> waiting(ranks.begin(), ranks.end());
    std::shuffle(waiting.begin(), waiting.end(), random);
    for (int step = 0; !waiting.empty(); ++step) {
      ASSERT_LT(step, 1000);
      Voter& voter = voters[static_cast<std::size_t>(waiting.back())];
      waiting.pop_back();
      voter.add(id, ranks);
      const bool is_bad = !all_ok && voter.node == bad;
      voter.vote(id, is_bad ? protocol::Vote::failed : protocol::Vote::ok);
      if (is_bad && skips) voter.pool.finish(voter.node, id);
      shake();
      for (const int node : ranks) voters[static_cast<std::size_t>(node)].run();
    }
    release_all();
    for (int round = 0; round < 8; ++round) {
      for (const int node : ranks) voters[static_cast<std::size_t>(node)].run();
    }
    for (const int node : ranks) {
      Voter& voter = voters[static_cast<std::size_t>(node)];
      if (!all_ok && node == bad && skips) continue;
      ASSERT_EQ(voter.others(id), all_ok ? protocol::Vote::ok : protocol::Vote::failed)
          << "node " << node << ", command " << id;
      voter.pool.finish(node, id);
      voter.run();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OnNodes, VotesOfNodes, testing::Values(2, 5, 17),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace syncrun::test
