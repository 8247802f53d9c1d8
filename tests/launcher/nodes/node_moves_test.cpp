// How values come to ranks of other nodes. Rank 0 is on the master's node, ranks 1 and 2 are on two others. The test does in
// the control blocks what the ranks would do, and decides when messages arrive.

#include "launcher/nodes/node_moves.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/protocol/variable_entry.hpp"
#include "tests/launcher/nodes/fake_mailboxes.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;

constexpr int kMoveRanks = 3;
constexpr std::uint64_t kVariable = std::uint64_t{600} << 20U;
constexpr std::uint64_t kDependencies = kVariable + 4096;
constexpr std::uint64_t kValues = kVariable + 8192;  // of each rank, in its own arena
constexpr std::uint64_t kInbound = std::uint64_t{700} << 20U;
constexpr std::uint64_t kWriter = 5;
constexpr std::uint64_t kMove = 7;

/// A node with one rank.
struct NodeWithMoves {
  NodeWithMoves(FakeMailboxes& mailboxes, int node, std::uint64_t session = 1)
      : mailbox(mailboxes.at(node)),
        rank(node),
        inbound(pool.segment(), kInbound, std::size_t{1} << 20U),
        moves(mailbox, pool.control(), pool.segment(), inbound, session) {
    pool.control().header().place = {node, kMoveRanks, node, 1};
    for (int other = 0; other < kMoveRanks; ++other) pool.control().worker(other).node = other;
    auto& entry = *pool.segment().at<VariableEntry>(kVariable);
    entry.dtype = DType::float64;
    entry.dimensions = 1;
  }
  VariableCopy& copy() { return pool.segment().at<VariableEntry>(kVariable)->copies()[rank]; }
  void write(const std::vector<double>& values) {
    copy().place = kValues;
    copy().extents = {static_cast<std::int64_t>(values.size())};
    std::copy(values.begin(), values.end(), pool.segment().at<double>(kValues));
  }
  /// A move to this rank, which depends on the writer. The slot of a command is its number.
  Command& put_move(std::uint64_t id, int from, int to) {
    Command& command = pool.control().command_in(id);
    command.begin<MovePayload>() = {kVariable, from};
    command.id = id;
    command.ranks = RankSet::only(to);
    *pool.segment().at<Dependency>(kDependencies) = {kWriter, kWriter, from};
    command.dependencies = kDependencies;
    command.dependencies_count = 1;
    return command;
  }
  Command& command(std::uint64_t id = kMove) { return pool.control().command_in(id); }
  bool has_values(std::uint64_t id = kMove) { return command(id).arrived.load() == id; }
  std::vector<double> values(std::uint64_t id = kMove) {
    const ArgumentSlot& slot = command(id).arguments[0];
    if (slot.extents[0] == 0) return {};
    const auto* const first = pool.segment().at<const double>(slot.offset);
    return {first, first + slot.extents[0]};
  }
  std::uint64_t owes(int other) { return pool.control().worker(other).owed.load(); }
  void run() {
    while (const auto next = mailbox.receive()) {
      MessageReader message(next->message, "another node");
      moves.take(next->node, message);
    }
    while (moves.look()) {
    }
  }

  FakeMailboxes::Box& mailbox;
  int rank;
  FakePool pool{kMoveRanks};
  SharedHeap inbound;
  NodeMoves moves;
};

class Moves : public testing::Test {
 protected:
  /// The master publishes a move.
  void publish(int from, int to, std::uint64_t id = kMove) {
    nodes[0].put_move(id, from, to);
    nodes[0].moves.order(id);
    if (to != 0) nodes[to].put_move(id, from, to);
    nodes[to].moves.add(id);
  }
  void run() {
    for (int round = 0; round < 3; ++round) {
      for (NodeWithMoves& node : nodes) node.run();
    }
  }

  FakeMailboxes mailboxes{kMoveRanks};
  NodeWithMoves nodes[kMoveRanks]{{mailboxes, 0}, {mailboxes, 1}, {mailboxes, 2}};
};

TEST_F(Moves, NeedOneMessageToTheSourceAndOneToTheDestination) {
  nodes[1].write({1});
  nodes[1].pool.finish(1, kWriter);
  publish(1, 2);
  run();
  EXPECT_EQ(mailboxes.at(0).sent, 1);
  EXPECT_EQ(mailboxes.at(1).sent, 1);
  EXPECT_EQ(mailboxes.at(2).sent, 0);
}

TEST_F(Moves, OweTheFirstOfSeveral) {
  nodes[1].write({1});
  publish(1, 2, kMove);
  nodes[0].put_move(kMove + 1, 1, 2).dependencies_count = 0;  // its source is ready before that of the first one
  nodes[0].moves.order(kMove + 1);
  nodes[2].put_move(kMove + 1, 1, 2);
  nodes[2].moves.add(kMove + 1);
  run();
  EXPECT_TRUE(nodes[2].has_values(kMove + 1));
  EXPECT_EQ(nodes[1].owes(2), kMove);
  nodes[1].pool.finish(1, kWriter);
  run();
  EXPECT_EQ(nodes[1].owes(2), 0U);
}

TEST_F(Moves, FailIfTheWriterHasFailed) {
  for (const int from : {0, 1}) {
    const std::uint64_t id = kMove + static_cast<std::uint64_t>(from);
    nodes[from].write({1});
    nodes[from].command(kWriter).failed.store(kWriter);
    nodes[from].pool.finish(from, kWriter);
    publish(from, 2, id);
    run();
    ASSERT_TRUE(nodes[2].has_values(id)) << "its worker must not wait for ever";
    EXPECT_EQ(nodes[2].command(id).spoiled.load(), id);
  }
}

TEST_F(Moves, FailIfTheMasterKnowsThatTheyMust) {
  publish(0, 1);
  nodes[0].command().spoiled.store(kMove);                // the writer has failed and was collected
  nodes[0].command(kWriter).failed.store(kWriter + 100);  // another command has its slot
  nodes[0].pool.finish(0, kWriter);
  run();
  EXPECT_EQ(nodes[1].command().spoiled.load(), kMove);
}

TEST_F(Moves, FreeTheMemoryWhenTheRankHasTheValues) {
  nodes[1].write(std::vector<double>(1000, 2));
  nodes[1].pool.finish(1, kWriter);
  publish(1, 2);
  run();
  EXPECT_EQ(nodes[2].inbound.used_bytes(), 8000U);
  nodes[2].pool.finish(2, kMove);
  run();
  EXPECT_EQ(nodes[2].inbound.used_bytes(), 0U);
}

TEST_F(Moves, ThatWereForgottenAreNotSentAfterwards) {
  nodes[1].write({1});
  publish(1, 2);
  run();
  EXPECT_EQ(nodes[1].owes(2), kMove);
  nodes[1].moves.forget(kMove);  // rank 1 was lost before it wrote the values
  EXPECT_EQ(nodes[1].owes(2), 0U);
  nodes[1].pool.finish(1, kMove);
  run();
  EXPECT_FALSE(nodes[2].has_values());
}

TEST_F(Moves, ThatWereForgottenAreNotHandedOverLate) {
  nodes[1].write(std::vector<double>(1000, 2));
  nodes[1].pool.finish(1, kWriter);
  publish(1, 2);
  nodes[1].run();  // the values are on their way to rank 2, which was lost
  nodes[2].moves.forget(kMove);
  nodes[2].command().id = kMove + 1;  // another command gets the slot
  nodes[2].run();
  EXPECT_FALSE(nodes[2].has_values());
  EXPECT_EQ(nodes[2].inbound.used_bytes(), 0U);
}

TEST_F(Moves, ThatAreForgottenLeaveNoMemory) {
  nodes[1].write(std::vector<double>(1000, 2));
  nodes[1].pool.finish(1, kWriter);
  publish(1, 2);
  run();
  EXPECT_EQ(nodes[2].inbound.used_bytes(), 8000U);
  nodes[2].moves.forget(kMove);
  EXPECT_EQ(nodes[2].inbound.used_bytes(), 0U);
}

TEST_F(Moves, ForSuccessorsMayComeBeforeANodeHearsOfThem) {
  nodes[1].write({3});
  nodes[1].pool.finish(1, kWriter);
  nodes[0].put_move(kMove + 1, 1, 2);
  nodes[0].moves.order(kMove + 1);
  run();
  nodes[2].moves.forget(kMove);
  nodes[2].put_move(kMove + 1, 1, 2);
  nodes[2].moves.add(kMove + 1);
  ASSERT_TRUE(nodes[2].has_values(kMove + 1));
  EXPECT_EQ(nodes[2].values(kMove + 1), std::vector<double>{3});
}

TEST_F(Moves, OfAnotherSessionAreIgnored) {
  NodeWithMoves old(mailboxes, 1, 8);
  old.write({1});
  old.pool.finish(1, kWriter);
  MessageWriter supply(MessageKind::supply);
  supply.put(kMove);
  supply.put(std::size_t{kMove});
  supply.put(kVariable);
  supply.put(std::int32_t{1});
  supply.put(std::int32_t{2});
  supply.put_list(std::span<const Dependency>());
  const auto bytes = supply.take();
  MessageReader message(bytes, "the master");
  old.moves.take(0, message);
  nodes[2].put_move(kMove, 1, 2);
  nodes[2].moves.add(kMove);
  nodes[2].run();
  EXPECT_FALSE(nodes[2].has_values());
}

TEST_F(Moves, WithinANodeAreLeftAlone) {
  for (NodeWithMoves& node : nodes) node.pool.control().worker(2).node = 1;
  nodes[1].pool.control().header().place.local_size = 2;
  publish(1, 2);
  EXPECT_EQ(mailboxes.at(0).sent, 0);
  EXPECT_EQ(nodes[1].owes(2), 0U);
}

}  // namespace
}  // namespace syncrun::test
