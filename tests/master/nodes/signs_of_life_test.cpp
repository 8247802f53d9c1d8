// For how long nothing is heard from a node. The test says how much time passes.

#include "master/nodes/signs_of_life.hpp"

#include <gmock/gmock.h>

#include "tests/master/nodes/fake_transport.hpp"

namespace syncrun::test {
namespace {

using namespace std::chrono_literals;
using namespace detail::master::nodes;
using testing::HasSubstr;

/// The signs of life of node 0 in a job of two.
class LifeOfNodes : public testing::Test {
 protected:
  static constexpr SignsOfLife::Limits kLimits{.silence = 300ms, .beat = 2ms, .masters_turn = 100ms};

  FakeNetwork network_{2};
  KnownNodes nodes_{2};
  SignsOfLife signs_{network_.at(0), nodes_, kLimits};
};

TEST_F(LifeOfNodes, ANodeIsLostOnceNothingIsHeardForTheLimit) {
  EXPECT_FALSE(signs_.silence_of(1, 299ms));
  signs_.note_message(1);
  EXPECT_FALSE(signs_.silence_of(1, 299ms));
  const auto loss = signs_.silence_of(1, 1ms);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->kind(), ErrorKind::worker_lost);
  EXPECT_THAT(loss->what(), HasSubstr("node 1 is silent for 0.3 s"));
}

TEST(LifeOfManyNodes, NamesAllThatAreSilent) {
  FakeNetwork network(4);
  const KnownNodes nodes(4);
  SignsOfLife signs(network.at(0), nodes, {.silence = 300ms, .beat = 2ms, .masters_turn = 100ms});
  const auto pass = [&](std::chrono::milliseconds time) {
    std::optional<Error> first;
    for (int node = 1; node < 4; ++node) {
      auto loss = signs.silence_of(node, time);
      if (!first) first = std::move(loss);
    }
    return first;
  };
  EXPECT_FALSE(pass(20ms));
  signs.note_message(3);  // its last sign comes later
  EXPECT_FALSE(pass(200ms));
  signs.note_message(2);
  const auto two = pass(80ms);
  ASSERT_TRUE(two);
  EXPECT_THAT(two->what(), HasSubstr("node 1, node 3 are silent for 0.3 s: their agents were killed"));
  signs.note_message(1);
  EXPECT_FALSE(pass(0ms)) << "node 3 is silent for less";
  const auto all = pass(220ms);
  ASSERT_TRUE(all);
  EXPECT_THAT(all->what(), HasSubstr("no other node is heard for 0.3 s: the network of node 0 is down"));
}

TEST(LifeOfManyNodes, DoesNotNameANodeThatWasHeardAFewBeatsLater) {
  FakeNetwork network(4);
  const KnownNodes nodes(4);
  SignsOfLife signs(network.at(0), nodes, {.silence = 300ms, .beat = 2ms, .masters_turn = 100ms});
  EXPECT_FALSE(signs.silence_of(2, 190ms));
  const auto one = signs.silence_of(1, 300ms);
  ASSERT_TRUE(one);
  EXPECT_THAT(one->what(), HasSubstr("node 1 is silent for 0.3 s"));
}

TEST_F(LifeOfNodes, PiecesThatArriveShowThatANodeLives) {
  for (int piece = 0; piece < 16; ++piece) {
    network_.pass_piece(1, 0);
    EXPECT_FALSE(signs_.silence_of(1, 200ms)) << piece;
  }
  EXPECT_TRUE(signs_.silence_of(1, 200ms)) << "no piece arrives any more";
}

TEST_F(LifeOfNodes, PiecesThatLeaveShowThatALinkWorks) {
  for (int piece = 0; piece < 16; ++piece) {
    network_.pass_piece(0, 1);
    EXPECT_FALSE(signs_.silence_of_peer(1, 300ms)) << piece;
  }
  EXPECT_TRUE(signs_.silence_of_peer(1, 300ms)) << "no piece leaves any more";
}

TEST_F(LifeOfNodes, APeerMayBeSilentUntilTheMasterHasHadItsTurn) {
  EXPECT_FALSE(signs_.silence_of_peer(1, 399ms));
  const auto loss = signs_.silence_of_peer(1, 1ms);
  ASSERT_TRUE(loss);
  EXPECT_THAT(loss->what(), HasSubstr("nothing is heard from node 1 for 0.4 s, but the master hears from both"));
}

}  // namespace
}  // namespace syncrun::test
