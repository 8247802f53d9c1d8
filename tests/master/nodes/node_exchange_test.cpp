// What carriers send for the ranks of their nodes. The test does in the control blocks what the ranks would do, and decides
// when messages arrive.

#include "master/nodes/node_exchange.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;

constexpr std::uint64_t kCommand = 7;
constexpr std::uint64_t kTable = std::uint64_t{600} << 20U;
constexpr std::uint64_t kOut = kTable + 4096;
constexpr std::uint64_t kIn = kTable + (std::uint64_t{1} << 20U);

/// A node with two ranks. Its lower rank leads it.
struct NodeThatExchanges : NodeOfTest {
  NodeThatExchanges(FakeNetwork& network, int node, std::uint64_t session = 1)
      : NodeOfTest(network, node, 2, 2), exchange(mailbox, pool.control(), pool.segment(), session) {}
  void add(std::uint64_t id = kCommand) {
    put_call(id, protocol::RankSet::all(4)).has_comm = true;
    exchange.add(id);
  }
  /// The leader asks for an exchange of this text.
  void ask(std::uint64_t step, const std::string& text, std::uint64_t id = kCommand, std::size_t room = 64) {
    auto* const blocks = pool.segment().at<protocol::NodeBlock>(kTable);
    std::memset(pool.segment().at(kIn), 0, room);
    std::memcpy(pool.segment().at(kOut), text.data(), text.size());
    blocks[0] = blocks[1] = {kOut, text.size(), kIn, room};
    protocol::NodeRequest& request = this->request();
    request.command = id;
    request.step = step;
    request.blocks = kTable;
    request.asked.store(request.asked.load() + 1);
  }
  protocol::NodeRequest& request() { return pool.control().worker(leader).exchange; }
  bool has_answer() { return request().answered.load() == request().asked.load(); }
  std::string answer() { return reinterpret_cast<const char*>(pool.segment().at(kIn)); }
  void finish(std::uint64_t id = kCommand) {
    for (const int rank : {leader, leader + 1}) pool.finish(rank, id);
  }
  void run() { NodeOfTest::run(exchange); }

  int leader = place.first_rank;
  NodeExchange exchange;
};

class Exchanges : public testing::Test {
 protected:
  void run() {
    for (int round = 0; round < 3; ++round) {
      here.run();
      there.run();
    }
  }
  void add_to_both(std::uint64_t id = kCommand) {
    here.add(id);
    there.add(id);
  }
  /// Both exchange a block, and get that of the other node.
  void expect_exchange(std::uint64_t id) {
    add_to_both(id);
    here.ask(0, "a", id);
    there.ask(0, "b", id);
    run();
    EXPECT_EQ(here.answer(), "b");
    EXPECT_EQ(there.answer(), "a");
  }

  FakeNetwork network{2};
  NodeThatExchanges here{network, 0};
  NodeThatExchanges there{network, 1};
};

/// A text that says where each of its bytes belongs.
std::string long_text(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += std::to_string(text.size()) + ' ';
  return text.substr(0, bytes);
}

TEST_F(Exchanges, SendSmallerPiecesIfTheMailboxSaysSo) {
  network.prompt_bytes = 1000;
  add_to_both();
  const std::string text = long_text(10'000);
  here.ask(0, text, kCommand, 2 * text.size());
  there.ask(0, "short", kCommand, 2 * text.size());
  run();
  EXPECT_EQ(there.answer(), text);
  EXPECT_EQ(network.messages_sent(0), 10U);
  EXPECT_LE(network.largest_message(0), 1256U);
}

TEST_F(Exchanges, AwaitMessagesUntilTheLastNodeHasSentItsBlock) {
  add_to_both();
  here.run();
  EXPECT_FALSE(here.exchange.awaits_messages()) << "the ranks have asked for nothing";
  here.ask(0, "a");
  run();
  EXPECT_TRUE(here.exchange.awaits_messages());
  EXPECT_EQ(here.exchange.answers(), 0U);
  there.ask(0, "b");
  run();
  EXPECT_FALSE(here.exchange.awaits_messages());
  EXPECT_EQ(here.exchange.answers(), 1U);
}

TEST_F(Exchanges, PutPiecesTogetherThatComeBeforeAndAfterTheRequest) {
  add_to_both();
  const std::string text = long_text(200'000);
  here.ask(0, text, kCommand, 200'000);
  here.run();
  for (int pieces = 0; pieces < 2; ++pieces) {
    const auto next = there.mailbox.receive();
    MessageReader message(next->message, "the other node");
    there.exchange.take(next->node, message);
  }
  there.ask(0, "b", kCommand, 200'000);
  while (there.exchange.look()) {
  }
  EXPECT_FALSE(there.has_answer()) << "two pieces are missing";
  run();
  EXPECT_TRUE(there.has_answer());
  EXPECT_EQ(there.answer(), text);
}

TEST_F(Exchanges, OfACommandThatIsOverAreDropped) {
  add_to_both();
  there.finish();
  there.run();
  here.ask(0, "too late");
  run();
  here.finish();
  run();
  expect_exchange(kCommand + 1);
}

TEST_F(Exchanges, OfAnotherSessionAreDropped) {
  NodeThatExchanges later(network, 1, 2);
  here.add();
  here.ask(0, "old");
  here.run();
  later.run();
  later.add();
  later.ask(0, "new");
  later.run();
  EXPECT_FALSE(later.has_answer());
  EXPECT_EQ(later.answer(), "");
}

TEST_F(Exchanges, TellTheNextCommandInTheSlotNothingOfALateFailure) {
  add_to_both();
  here.command(kCommand).failed.store(kCommand);
  here.run();
  there.finish();
  protocol::Command& next =
      there.command(kCommand);  // the message about it comes before that about the failure is read
  next.id = kCommand + 100;
  next.failed.store(0);
  there.run();
  EXPECT_EQ(next.failed.load(), 0U);
}

TEST_F(Exchanges, ThatALeaderAskedForBeforeItLeftCount) {
  add_to_both();
  there.ask(0, "the last");
  here.ask(0, "first");
  run();
  there.request().left.store(kCommand);
  run();
  EXPECT_EQ(here.request().left_rank_plus_one, 0);
  EXPECT_EQ(here.answer(), "the last");
  here.ask(1, "second");
  run();
  EXPECT_EQ(here.request().left_rank_plus_one, there.leader + 1);
}

TEST_F(Exchanges, OfVotesFailIfANodeHasLostAllItsRanks) {
  for (NodeThatExchanges* const node : {&here, &there}) {
    node->pool.control().header().respawns = true;
    node->command(kCommand).wants_vote = true;
    node->add();
  }
  for (const int rank : {2, 3}) there.pool.die(rank, FakePool::killed());
  EXPECT_TRUE(there.exchange.has_news());
  run();
  EXPECT_EQ(here.command(kCommand).vote_of_others.load(), protocol::vote_word(kCommand, protocol::Vote::failed));
}

TEST_F(Exchanges, ThatWereForgottenHoldUpNoLaterOnes) {
  add_to_both();
  there.ask(0, "of a rank that was lost then");  // nobody has looked
  here.ask(0, "given up");
  here.run();
  for (NodeThatExchanges* const node : {&here, &there}) {
    node->exchange.forget(kCommand);
    EXPECT_EQ(node->request().taken.load(), node->request().asked.load()) << "the next request waits for that";
    EXPECT_FALSE(node->exchange.has_news());
  }
  run();
  EXPECT_EQ(there.answer(), "") << "the block of the given-up exchange came late";
  expect_exchange(kCommand + 1);
}

TEST_F(Exchanges, LeaveTheRoomAloneOnceTheLeaderHasLeft) {
  add_to_both();
  here.ask(0, "given up");
  here.run();
  EXPECT_EQ(here.request().taken.load(), here.request().asked.load());
  here.request().left.store(kCommand);
  there.ask(0, "must not come");
  run();
  EXPECT_EQ(here.answer(), "");
  EXPECT_FALSE(here.has_answer());
}

TEST_F(Exchanges, OfABlockThatIsTooLargeAreAnError) {
  add_to_both();
  here.ask(0, "a");
  here.run();
  there.ask(0, std::string(100, 'x'));
  there.run();
  EXPECT_THROW(here.run(), Error);
}

}  // namespace
}  // namespace syncrun::test
