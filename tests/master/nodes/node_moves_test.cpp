// How values come to ranks of other nodes. Rank 0 is on the master's node, ranks 1 and 2 are on two others. The test does in
// the control blocks what the ranks would do, and decides when messages arrive.

#include "master/nodes/node_moves.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "common/protocol/variable_entry.hpp"
#include "master/nodes/agent.hpp"
#include "master/nodes/command_message.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;

constexpr int kMoveRanks = 3;
constexpr std::uint64_t kVariable = std::uint64_t{600} << 20U;
constexpr std::uint64_t kDependencies = kVariable + 4096;
constexpr std::uint64_t kValues = kVariable + 8192;  // of each rank, in its own arena
constexpr std::uint64_t kInbound = std::uint64_t{700} << 20U;
constexpr std::uint64_t kWriter = 5;
constexpr std::uint64_t kMove = 7;

/// A node with one rank.
struct NodeWithMoves : NodeOfTest {
  NodeWithMoves(FakeNetwork& network, int node, std::uint64_t session = 1)
      : NodeOfTest(network, node, kMoveRanks, 1), moves(mailbox, pool.control(), pool.segment(), inbound, session) {
    auto& entry = *pool.segment().at<protocol::VariableEntry>(kVariable);
    entry.dtype = DType::float64;
    entry.dimensions = 1;
  }
  protocol::VariableCopy& copy() { return pool.segment().at<protocol::VariableEntry>(kVariable)->copies()[place.node]; }
  void write(const std::vector<double>& values) {
    copy().place = kValues;
    copy().extents = {static_cast<std::int64_t>(values.size())};
    std::copy(values.begin(), values.end(), pool.segment().at<double>(kValues));
  }
  /// A move to this rank, which depends on the writer. The slot of a command is its number.
  protocol::Command& put_move(std::uint64_t id, int from, int to) {
    protocol::Command& command = put_call(id, protocol::RankSet::only(to));
    command.begin<protocol::MovePayload>() = {kVariable, from};
    *pool.segment().at<protocol::Dependency>(kDependencies) = {kWriter, kWriter, from};
    command.dependencies = kDependencies;
    command.dependencies_count = 1;
    return command;
  }
  bool has_values(std::uint64_t id = kMove) { return command(id).arrived.load() == id; }
  std::vector<double> values(std::uint64_t id = kMove) {
    const protocol::ArgumentSlot& slot = command(id).arguments[0];
    if (slot.extents[0] == 0) return {};
    const auto* const first = pool.segment().at<const double>(slot.offset);
    return {first, first + slot.extents[0]};
  }
  std::uint64_t owes(int other) { return pool.control().worker(other).owed.load(); }
  void run() { NodeOfTest::run(moves); }

  os::SharedHeap inbound{pool.segment(), kInbound, std::size_t{1} << 20U};
  NodeMoves moves;
};

class Moves : public testing::Test {
 protected:
  /// The node gets an order for values of rank 1.
  static void take_order(NodeWithMoves& node, const std::vector<protocol::Dependency>& earlier, std::size_t slot,
                         std::int32_t to, std::uint64_t variable = kVariable) {
    MessageWriter supply(MessageKind::supply, kMove, slot, variable, std::int32_t{1}, to);
    supply.put_list(std::span(earlier));
    const auto bytes = supply.take();
    MessageReader message(bytes, "the master");
    node.moves.take(0, message);
  }
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

  FakeNetwork network{kMoveRanks};
  NodeWithMoves nodes[kMoveRanks]{{network, 0}, {network, 1}, {network, 2}};
};

TEST_F(Moves, NeedOneMessageToTheSourceAndOneToTheDestination) {
  nodes[1].write({1});
  nodes[1].pool.finish(1, kWriter);
  publish(1, 2);
  run();
  EXPECT_EQ(network.messages_sent(0), 1U);
  EXPECT_EQ(network.messages_sent(1), 1U);
  EXPECT_EQ(network.messages_sent(2), 0U);
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

TEST_F(Moves, FailIfTheMasterKnowsThatTheyMust) {
  publish(0, 1);
  nodes[0].command(kMove).spoiled.store(kMove);           // the writer has failed and was collected
  nodes[0].command(kWriter).failed.store(kWriter + 100);  // another command has its slot
  nodes[0].pool.finish(0, kWriter);
  run();
  EXPECT_EQ(nodes[1].command(kMove).spoiled.load(), kMove);
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
  nodes[2].command(kMove).id = kMove + 1;  // another command gets the slot
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

TEST_F(Moves, AreRefusedIfTheOrderNamesWhatDoesNotExist) {
  const std::size_t slots = nodes[1].pool.control().slots();
  EXPECT_THROW(take_order(nodes[1], {}, slots, 2), Error);
  EXPECT_THROW(take_order(nodes[1], {}, kMove, -1), Error);
  EXPECT_THROW(take_order(nodes[1], {}, kMove, kMoveRanks), Error);
  EXPECT_THROW(take_order(nodes[1], {}, kMove, 2, ~std::uint64_t{0}), Error);
  EXPECT_THROW(take_order(nodes[1], {{kWriter, slots, 1}}, kMove, 2), Error);
  EXPECT_FALSE(nodes[1].moves.has_news());
  nodes[1].pool.finish(1, kWriter);
  take_order(nodes[1], {{kWriter, protocol::Dependency::kOnlyReads, 1}}, kMove, 2);
  EXPECT_EQ(network.messages_sent(1), 1U);
}

TEST_F(Moves, AreRefusedIfTheValuesHaveAnotherSizeThanTheySay) {
  const auto take_values = [&](std::uint64_t id, std::int64_t extent, std::size_t count) {
    MessageWriter values(MessageKind::values, std::uint64_t{1}, id, false,
                         std::array<std::int64_t, kMaxDimensions>{extent});
    values.put_all(std::span<const double>(std::vector<double>(count)));
    const auto bytes = values.take();
    MessageReader message(bytes, "node 1");
    nodes[2].moves.take(1, message);
  };
  publish(1, 2);
  for (const std::int64_t extent : {std::int64_t{3}, std::int64_t{1}, std::int64_t{-2}, std::int64_t{1} << 61})
    EXPECT_THROW(take_values(kMove, extent, 2), Error) << extent;
  EXPECT_FALSE(nodes[2].has_values());
  take_values(kMove, 2, 2);
  EXPECT_TRUE(nodes[2].has_values());
  take_values(kMove + 1, 3, 2);  // before their command, which says how large an element is
  EXPECT_THROW(publish(1, 2, kMove + 1), Error);
}

/// The commands of an agent that the master of the same build would never send.
class BadCommands : public Moves {
 protected:
  BadCommands() { nodes[0].put_move(kMove, 1, 2); }
  template <class Change>
  void refuse(Change&& change) {
    protocol::Command& sent = nodes[0].command(kMove);
    const protocol::CommandHead before = sent;
    change(sent);
    EXPECT_THROW(pass(), Error);
    static_cast<protocol::CommandHead&>(sent) = before;
  }
  void pass(std::size_t slot = kMove) {
    MessageWriter writer(MessageKind::command);
    put_command(writer, nodes[0].pool.control(), nodes[0].pool.segment(), kMove, nodes[2].place);
    auto bytes = writer.take();
    std::memcpy(bytes.data() + sizeof(MessageKind), &slot, sizeof slot);
    MessageReader message(bytes, "the master");
    take_command(message, nodes[2].pool.control(), nodes[2].pool.segment());
  }
};

TEST_F(BadCommands, AreRefused) {
  EXPECT_NO_THROW(pass());
  EXPECT_THROW(pass(nodes[2].pool.control().slots()), Error);
  refuse([](protocol::Command& sent) { sent.kind = protocol::CommandKind::transfer; });
  refuse([](protocol::Command& sent) { sent.dependencies = ~std::uint64_t{0}; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::MovePayload>() = {kVariable, kMoveRanks}; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::MovePayload>() = {~std::uint64_t{0}, 1}; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::CallPayload>().arguments_count = kMaxArguments + 1; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::CallPayload>().outputs_count = kMaxOutputs + 1; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::TransferPayload>().parts = ~std::uint64_t{0}; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::CollectivePayload>().variables = ~std::uint64_t{0}; });
  const std::uint64_t end = nodes[2].pool.segment().bytes();
  refuse([&](protocol::Command& sent) { sent.begin<protocol::MemoryPayload>().to = end; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::FreePayload>().first = end; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::FilesPayload>().variable = end; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::FilesPayload>().folder = {end, 1}; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::CollectivePayload>().root = kMoveRanks; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::CallPayload>().batch_s_by_rank = end; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::CallPayload>().share_begins = end - 8; });
  refuse([&](protocol::Command& sent) { sent.begin<protocol::CallPayload>().function = end; });
  refuse([](protocol::Command& sent) { sent.begin<protocol::CallPayload>().slices = 0; });
  for (const protocol::RowsSlot& rows :
       {protocol::RowsSlot{Rows::Kind::list, 0, 1, end}, protocol::RowsSlot{Rows::Kind::list, 0, -1, 0},
        protocol::RowsSlot{Rows::Kind::list, -1, 1, 64}}) {
    refuse([&](protocol::Command& sent) { sent.begin<protocol::CallPayload>().batch = rows; });
    refuse([&](protocol::Command& sent) { sent.begin<protocol::CallPayload>().batch_s = rows; });
  }
  for (const protocol::ArgumentSlot& argument :
       {protocol::ArgumentSlot{.offset = end, .bytes = 1}, protocol::ArgumentSlot{.offset = 64, .bytes = end},
        protocol::ArgumentSlot{.kind = ArgumentKind::update, .offset = end}, protocol::ArgumentSlot{.file = end},
        protocol::ArgumentSlot{.dimensions = kMaxDimensions + 1}}) {
    refuse([&](protocol::Command& sent) {
      sent.begin<protocol::CallPayload>().arguments_count = 1;
      sent.arguments[0] = argument;
    });
  }
  refuse([&](protocol::Command& sent) {
    sent.begin<protocol::CallPayload>().outputs_count = 1;
    sent.outputs[0] = {.is_kept = true};
    sent.kept[0] = end;
  });
  nodes[0].command(kMove).places[2] = protocol::kInboxSize;
  EXPECT_THROW(pass(), Error);
}

TEST_F(BadCommands, AreNotSpoiled) {
  Agent agent(nodes[2].mailbox, nodes[2].pool.control(), nodes[2].pool.segment());
  const auto spoil = [&](std::size_t slot) {
    const auto bytes = MessageWriter(MessageKind::spoil, slot, kMove).take();
    MessageReader message(bytes, "the master");
    agent.take(message);
  };
  EXPECT_THROW(spoil(nodes[2].pool.control().slots()), Error);
  spoil(kMove);
  EXPECT_EQ(nodes[2].command(kMove).spoiled.load(), kMove);
}

TEST_F(Moves, OfAnotherSessionAreIgnored) {
  NodeWithMoves old(network, 1, 8);
  old.write({1});
  old.pool.finish(1, kWriter);
  take_order(old, {}, kMove, 2);
  nodes[2].put_move(kMove, 1, 2);
  nodes[2].moves.add(kMove);
  nodes[2].run();
  EXPECT_FALSE(nodes[2].has_values());
}

TEST_F(Moves, WithinANodeAreLeftAlone) {
  for (NodeWithMoves& node : nodes) node.pool.control().worker(2).node = 1;
  nodes[1].pool.control().header().place.local_size = 2;
  publish(1, 2);
  EXPECT_EQ(network.messages_sent(0), 0U);
  EXPECT_EQ(nodes[1].owes(2), 0U);
}

}  // namespace
}  // namespace syncrun::test
