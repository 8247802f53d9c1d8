// What carriers send for the ranks of their nodes. The test does in the control blocks what the ranks would do, and decides
// when messages arrive.

#include "launcher/nodes/node_exchange.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/launcher/nodes/fake_mailboxes.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;

constexpr int kWorldSize = 4;
constexpr std::uint64_t kCommand = 7;
constexpr std::uint64_t kTable = std::uint64_t{600} << 20U;
constexpr std::uint64_t kOut = kTable + 4096;
constexpr std::uint64_t kIn = kTable + (std::uint64_t{1} << 20U);

/// A node with two ranks. Its lower rank leads it.
struct NodeOfTest {
  NodeOfTest(FakeMailboxes& mailboxes, int node, std::uint64_t session = 1)
      : mailbox(mailboxes.at(node)), leader(2 * node), exchange(mailbox, pool.control(), pool.segment(), session) {
    pool.control().header().place = {node, 2, 2 * node, 2};
    for (int rank = 0; rank < kWorldSize; ++rank) pool.control().worker(rank).node = rank / 2;
  }
  Command& command_of(std::uint64_t id) { return pool.control().command_in(id); }
  void add(std::uint64_t id = kCommand) {
    Command& command = command_of(id);
    command.begin<CallPayload>();
    command.id = id;
    command.ranks = RankSet::all(kWorldSize);
    command.comm = CommChoice::nodes();
    command.has_comm = true;
    exchange.add(id);
  }
  /// The leader asks for an exchange of this text.
  void ask(std::uint64_t step, const std::string& text, std::uint64_t id = kCommand, std::size_t room = 64) {
    auto* const blocks = pool.segment().at<NodeBlock>(kTable);
    std::memset(pool.segment().at(kIn), 0, room);
    std::memcpy(pool.segment().at(kOut), text.data(), text.size());
    blocks[0] = blocks[1] = {kOut, text.size(), kIn, room};
    NodeRequest& request = this->request();
    request.command = id;
    request.step = step;
    request.blocks = kTable;
    request.asked.store(request.asked.load() + 1);
  }
  NodeRequest& request() { return pool.control().worker(leader).exchange; }
  bool has_answer() { return request().answered.load() == request().asked.load(); }
  std::string answer() { return reinterpret_cast<const char*>(pool.segment().at(kIn)); }
  void finish(std::uint64_t id = kCommand) {
    for (const int rank : {leader, leader + 1}) pool.finish(rank, id);
  }
  /// Lets messages arrive, and looks for requests.
  void run() {
    while (auto next = mailbox.receive()) {
      MessageReader message(next->message, "the other node");
      exchange.take(next->node, message);
    }
    while (exchange.look()) {
    }
  }

  FakeMailboxes::Box& mailbox;
  int leader;
  FakePool pool{kWorldSize};
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

  FakeMailboxes mailboxes{2};
  NodeOfTest here{mailboxes, 0};
  NodeOfTest there{mailboxes, 1};
};

/// A text that says where each of its bytes belongs.
std::string long_text(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += std::to_string(text.size()) + ' ';
  return text.substr(0, bytes);
}

constexpr std::size_t kLongBytes = 200'000;

TEST_F(Exchanges, SendALargeBlockInPiecesOfLessThan64KiB) {
  here.add();
  there.add();
  for (std::uint64_t step = 0; step < 3; ++step) {
    const std::string text = long_text(kLongBytes + step);
    here.ask(step, text, kCommand, 2 * kLongBytes);
    there.ask(step, "short", kCommand, 2 * kLongBytes);
    run();
    EXPECT_TRUE(here.has_answer());
    EXPECT_TRUE(there.has_answer());
    EXPECT_EQ(there.answer(), text);
    EXPECT_EQ(here.answer(), "short");
  }
  EXPECT_EQ(here.mailbox.sent, 3 * 4);
  EXPECT_LT(here.mailbox.most_bytes, 64 * 1024);
}

TEST_F(Exchanges, PutPiecesTogetherThatComeBeforeAndAfterTheRequest) {
  here.add();
  there.add();
  const std::string text = long_text(kLongBytes);
  here.ask(0, text, kCommand, kLongBytes);
  here.run();
  for (int pieces = 0; pieces < 2; ++pieces) {
    const auto next = there.mailbox.receive();
    MessageReader message(next->message, "the other node");
    there.exchange.take(next->node, message);
  }
  there.ask(0, "b", kCommand, kLongBytes);
  while (there.exchange.look()) {
  }
  EXPECT_FALSE(there.has_answer()) << "two pieces are missing";
  run();
  EXPECT_TRUE(there.has_answer());
  EXPECT_EQ(there.answer(), text);
}

TEST_F(Exchanges, OfACommandThatIsOverAreDropped) {
  here.add();
  there.add();
  there.finish();
  there.run();
  here.ask(0, "too late");
  run();
  here.finish();
  run();
  here.add(kCommand + 1);
  there.add(kCommand + 1);
  here.ask(0, "a", kCommand + 1);
  there.ask(0, "b", kCommand + 1);
  run();
  EXPECT_EQ(here.answer(), "b");
  EXPECT_EQ(there.answer(), "a");
}

TEST_F(Exchanges, OfAnotherSessionAreDropped) {
  NodeOfTest later(mailboxes, 1, 2);
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
  here.add();
  there.add();
  here.command_of(kCommand).failed.store(kCommand);
  here.run();
  there.finish();
  Command& next = there.command_of(kCommand);  // the message about it comes before that about the failure is read
  next.id = kCommand + 100;
  next.failed.store(0);
  there.run();
  EXPECT_EQ(next.failed.load(), 0U);
}

TEST_F(Exchanges, ThatALeaderAskedForBeforeItLeftCount) {
  here.add();
  there.add();
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

/// A command in which ranks wait for votes, in a session that replaces lost workers.
class Votes : public Exchanges {
 protected:
  Votes() {
    for (NodeOfTest* const node : {&here, &there}) {
      node->pool.control().header().respawns = true;
      node->command_of(kCommand).wants_vote = true;
      node->add();
    }
  }
  static void vote(NodeOfTest& node, int rank, Vote vote) {
    node.pool.control().outbox(node.command_of(kCommand), rank).cast = vote;
    node.pool.control().worker(rank).vote.store(vote_word(kCommand, vote));
  }
  std::uint64_t known_here() { return here.command_of(kCommand).vote_of_others.load(); }
};

TEST_F(Votes, OfARankThatWasLostBeforeItVotedAreFailures) {
  vote(there, 2, Vote::ok);
  run();
  EXPECT_EQ(known_here(), 0U);
  there.pool.die(3, FakePool::killed());
  EXPECT_TRUE(there.exchange.has_news());
  run();
  EXPECT_EQ(known_here(), vote_word(kCommand, Vote::failed));
}

TEST_F(Votes, OfALostRankCountIfItHasVoted) {
  vote(there, 3, Vote::ok);
  there.pool.die(3, FakePool::killed());
  run();
  EXPECT_EQ(known_here(), 0U) << "a survivor has not voted yet";
  vote(there, 2, Vote::ok);
  run();
  EXPECT_EQ(known_here(), vote_word(kCommand, Vote::ok));
}

TEST_F(Votes, OfANodeThatHasLostAllItsRanksAreFailures) {
  there.pool.die(2, FakePool::killed());
  there.pool.die(3, FakePool::killed());
  run();
  EXPECT_EQ(known_here(), vote_word(kCommand, Vote::failed));
}

TEST_F(Exchanges, ThatWereForgottenHoldUpNoLaterOnes) {
  for (NodeOfTest* const node : {&here, &there}) node->add();
  there.ask(0, "of a rank that was lost then");  // nobody has looked
  here.ask(0, "given up");
  here.run();
  for (NodeOfTest* const node : {&here, &there}) {
    node->exchange.forget(kCommand);
    EXPECT_EQ(node->request().taken.load(), node->request().asked.load()) << "the next request waits for that";
    EXPECT_FALSE(node->exchange.has_news());
  }
  run();
  EXPECT_EQ(there.answer(), "") << "the block of the given-up exchange came late";
  for (NodeOfTest* const node : {&here, &there}) node->add(kCommand + 1);
  here.ask(0, "a", kCommand + 1);
  there.ask(0, "b", kCommand + 1);
  run();
  EXPECT_EQ(here.answer(), "b");
  EXPECT_EQ(there.answer(), "a");
}

TEST_F(Exchanges, LeaveTheRoomAloneOnceTheLeaderHasLeft) {
  here.add();
  there.add();
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
  here.add();
  there.add();
  here.ask(0, "a");
  here.run();
  there.ask(0, std::string(100, 'x'));
  there.run();
  EXPECT_THROW(here.run(), Error);
}

}  // namespace
}  // namespace syncrun::test
