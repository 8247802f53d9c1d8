// The copies of a Value in a session on several nodes, tested without workers and messages.

#include <gmock/gmock.h>

#include "common/os/heap_log.hpp"
#include "launcher/values/value_copies.hpp"
#include "tests/launcher/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::IsEmpty;

/// Rank 0 is on the master's node, ranks 1 and 2 on another one, and rank 3 on a third one.
class CopiesOnNodes : public testing::Test {
 protected:
  static constexpr int kWorldSize = 4;

  explicit CopiesOnNodes(const std::vector<DeviceId>& devices = {{}, {}, {}, {}})
      : session(devices, {{0, 3, 0, 1}, {1, 3, 1, 2}, {2, 3, 3, 1}}) {
    session.commands.leaves_in_flight = true;
    session.commands.on_await = [this](std::uint64_t id) {
      if (session.calls.is_in_flight(id)) session.commands.finish(id);
    };
    session.pool.control().header().place = {0, 3, 0, 1};
    for (int rank = 0; rank < kWorldSize; ++rank) session.pool.control().worker(rank).node = (rank + 1) / 2;
    x->name = "x";
    x->dtype = DType::float32;
    x->dimensions = 1;
    x->copies.change() = CopyFacts(kWorldSize);
    x->value = std::make_unique<ValueState>(kWorldSize);
    x->value->extents = Extents{4};
    x->entry = session.heap.allocate(VariableEntry::bytes(kWorldSize), SharedHeap::Contents::zero, "a value");
    session.commands.finish(write(0));
  }
  std::uint64_t write(int rank) {
    session.calls.next(RankSet::only(rank), Milliseconds(0));
    depend_on_copy(session.commands, *x, rank, Access::writes);
    const std::uint64_t id = session.calls.publish();
    note_use(session.commands, *x, rank, Access::writes, id);
    mark_spare_copies(session.commands, *x);
    return id;
  }
  std::uint64_t bring(int rank) {
    EXPECT_FALSE(claim_copy(session.commands, *x, rank));
    static_cast<void>(bring_copy(session.commands, x, rank));
    return session.calls.last_published();
  }
  std::uint64_t to_host() {
    bring_to_host(session.commands, x);
    return session.calls.last_published();
  }
  int source_of(std::uint64_t move) const { return session.calls.command(move).as<MovePayload>().from; }
  /// The commands of other ranks for which a command waits.
  std::vector<std::uint64_t> awaited(std::uint64_t id) const {
    std::vector<std::uint64_t> ids;
    for (const EarlierCommand& earlier : session.calls.in_flight(id).dependencies) {
      if (earlier.rank != Dependency::kOwnRank) ids.push_back(earlier.id);
    }
    return ids;
  }

  PlayedSession session;
  std::shared_ptr<VariableRecord> x = std::make_shared<VariableRecord>();
};

TEST_F(CopiesOnNodes, ComeFromTheSameNodeIfOneIsThere) {
  const auto first = bring(2);
  EXPECT_EQ(source_of(first), 0);
  const auto second = bring(1);
  EXPECT_EQ(source_of(second), 2) << "the value travels to the node once";
  EXPECT_THAT(awaited(second), ElementsAre(first));
  EXPECT_EQ(source_of(bring(3)), 0);
}

/// Ranks 1 and 2 have GPUs, and so has rank 3. Rank 0 is a CPU device.
class CopiesOnGpusOfNodes : public CopiesOnNodes {
 protected:
  CopiesOnGpusOfNodes() : CopiesOnNodes({{}, {DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}, {DeviceKind::cuda, 0}}) {}
  CommandKind kind_of(std::uint64_t id) const { return session.calls.command(id).kind; }
};

TEST_F(CopiesOnGpusOfNodes, CrossInTheMemoryOfTheHost) {
  session.commands.finish(write(1));
  const auto moved = bring(3);
  EXPECT_EQ(kind_of(moved), CommandKind::transfer);
  EXPECT_EQ(session.calls.command(moved).as<TransferPayload>().direction, TransferDirection::to_variable);
  EXPECT_TRUE(x->value->host.is_valid);
  EXPECT_EQ(x->value->host.written_by, 1);
  EXPECT_FALSE(session.calls.is_in_flight(x->value->host.written)) << "the master has to have the values";
}

TEST_F(CopiesOnGpusOfNodes, ComeToACpuDeviceOfAnotherNodeByTheHost) {
  session.commands.finish(write(3));
  EXPECT_EQ(kind_of(bring(0)), CommandKind::transfer);
}

TEST_F(CopiesOnGpusOfNodes, ComeDirectlyFromTheSameNode) {
  const auto first = bring(2);  // from the CPU device of another node
  EXPECT_EQ(kind_of(first), CommandKind::transfer);
  const auto second = bring(1);
  EXPECT_EQ(kind_of(second), CommandKind::move);
  EXPECT_EQ(source_of(second), 2);
}

TEST_F(CopiesOnNodes, ComeFromTheHomeIfThoseOfTheNodeAreNotValid) {
  bring(2);
  const auto write_again = write(0);
  const auto move = bring(1);
  EXPECT_EQ(source_of(move), 0);
  EXPECT_THAT(awaited(move), ElementsAre(write_again));
}

TEST_F(CopiesOnNodes, AreOverwrittenAfterThoseWhoReadThem) {
  bring(2);
  const auto move = bring(1);
  EXPECT_THAT(awaited(write(2)), ElementsAre(move));
}

TEST_F(CopiesOnNodes, AreOnTheHostBeforeTheyComeFromThere) {
  const auto transfer = to_host();
  x->value->copies[0].is_valid = false;
  x->value->home = ValueState::kHost;
  const auto move = bring(3);
  EXPECT_FALSE(session.calls.is_in_flight(transfer)) << "the master has waited for it";
  EXPECT_EQ(session.calls.command(move).as<TransferPayload>().direction, TransferDirection::to_variable);
  EXPECT_THAT(awaited(move), IsEmpty());
}

TEST_F(CopiesOnNodes, GoToTheHostWhenNobodyUsesItsMemory) {
  const auto older = to_host();
  bring(3);
  write(3);
  const auto newer = to_host();
  EXPECT_FALSE(session.calls.is_in_flight(older));
  EXPECT_THAT(awaited(newer), IsEmpty());
}

TEST_F(CopiesOnNodes, OfTheHostTravelByRowsAndAgainAfterAChange) {
  HeapLog log;
  session.heap.note_changes(log);
  to_host();
  const auto memory = x->value->host.offset;
  std::vector<HeapChange::Kind> kinds;
  log.for_each(0, [&](const HeapChange& change) {
    if (change.offset == memory) kinds.push_back(change.kind);
  });
  EXPECT_THAT(kinds,
              ElementsAre(HeapChange::Kind::reserved, HeapChange::Kind::mirrored, HeapChange::Kind::rows_written));
}

}  // namespace
}  // namespace syncrun::test
